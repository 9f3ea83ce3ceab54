"""Claims about what is known to be no model of transformers before it is trained."""

import pytest

from bertjax import config as config_lib
from bertjax import finetuning, recipes
from bertjax.convert import huggingface_tokenizer
from bertjax.data import sentence_piece, tokenizer
from bertjax.training import outlook
from tests import small_records
from tests.data import test_sentence_piece


def finetuned(dataset, **options):
    config = recipes.finetuning_config(dataset)
    config.model.update(vocab_size=95, dtype="float32")
    config.finetuning.update(options)
    return config


def test_every_kind_of_vocabulary_is_written_for_transformers():
    others = tokenizer.TOKENIZERS.keys() - huggingface_tokenizer.WRITERS.keys()
    assert others == {tokenizer.IntegerTokenizer.kind}  # transformers has no tokenizer of integers
    fields = {"vocab_size": 9, "pad_id": 0, "cls_id": 1, "sep_id": 2, "mask_id": 3}
    config = config_lib.default_config()
    config.model.update(vocab_size=9, dtype="float32")
    (told,) = outlook.obstacles(config, tokenizer.IntegerTokenizer(fields))
    assert told == "the vocabulary is of the kind integers: it has no tokenizer of integers"


def test_what_bert_has_meets_no_obstacle():
    config = config_lib.default_config()
    config.model.update(vocab_size=95, dtype="float32")
    assert outlook.obstacles(config, small_records.vocabulary()) == []
    assert outlook.obstacles(config, None) == []
    assert outlook.obstacles(finetuned("glue"), small_records.vocabulary()) == []


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (finetuned("table", pooling="mean"), "finetuning.pooling=mean"),
        (finetuned("conll", feature_based=True), "BiLSTM"),
        *(
            (finetuned(kind, bilstm_size=3), "bilstm_size")
            for kind in finetuning.KINDS
            if kind != "embeddings"
        ),
    ],
)
def test_a_head_that_no_class_has_is_told(config, word):
    (told,) = outlook.obstacles(config, small_records.vocabulary())
    assert word in told


def test_a_vocabulary_and_an_encoder_that_it_lacks_are_both_told():
    config = config_lib.default_config()
    config.model.update(vocab_size=95, embedding_size=128, dtype="float32")
    model = test_sentence_piece.model(**test_sentence_piece.BERT, model_type="bpe")
    made = sentence_piece.SentencePieceTokenizer(model)
    vocabulary, sizes = outlook.obstacles(config, made)
    assert vocabulary.startswith(
        "the vocabulary is of the kind sentencepiece: it is a model of type bpe"
    )
    assert "embedding_size 128" in sizes
