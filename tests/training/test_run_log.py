"""Claims about what is known to be no model of transformers before it is trained."""

from bertjax import config as config_lib
from bertjax import finetuning, recipes, train
from bertjax.convert import huggingface_tokenizer
from bertjax.models import placement
from bertjax.tokenization import sentence_piece, tokenizer
from bertjax.training import run_log
from tests import small_records, small_values
from tests.tokenization import test_sentence_piece


def finetuned(dataset, **options):
    config = recipes.finetuning_config(dataset)
    config.model.update(vocab_size=95, dtype="float32")
    config.finetuning.update(options)
    return config


def test_every_kind_of_vocabulary_is_written_for_transformers():
    written = {*huggingface_tokenizer.WRITERS, tokenizer.LibraryTokenizer.kind}
    others = tokenizer.TOKENIZERS.keys() - written
    assert others == {tokenizer.IntegerTokenizer.kind}  # transformers has no tokenizer of integers
    fields = {"vocab_size": 9, "pad_id": 0, "cls_id": 1, "sep_id": 2, "mask_id": 3}
    config = config_lib.default_config()
    config.model.update(vocab_size=9, dtype="float32")
    (told,) = run_log.obstacles(config, tokenizer.IntegerTokenizer(fields))
    assert told == "the vocabulary is of the kind integers: it has no tokenizer of integers"


def test_integers_for_the_encoder_of_another_family_are_named_too():
    fields = {"vocab_size": 9, "pad_id": 0, "cls_id": 1, "sep_id": 2, "mask_id": 3}
    config = recipes.roberta_config()
    config.model.update(vocab_size=9, dtype="float32")
    (told,) = run_log.obstacles(config, tokenizer.IntegerTokenizer(fields))
    assert told.startswith("the vocabulary is of the kind integers")


def test_a_large_table_that_devices_do_not_divide_is_told_with_a_size_that_they_do():
    (told,) = run_log.whole_table(250_002, 12)
    assert told.startswith("config.model.vocab_size is 250002, which 12 data devices do not divide")
    assert told.endswith("=250368")  # 652 times 384, which 12 and 128 divide
    assert placement.splits_entries(250_368, 12)
    for entries, devices in [(250_000, 4), (250_002, 1), (30_522, 4)]:
        assert not list(run_log.whole_table(entries, devices))


def test_what_bert_has_meets_no_obstacle():
    config = config_lib.default_config()
    config.model.update(vocab_size=95, dtype="float32")
    assert run_log.obstacles(config, small_records.vocabulary()) == []
    assert run_log.obstacles(config, None) == []
    assert run_log.obstacles(finetuned("glue"), small_records.vocabulary()) == []


def test_a_head_that_no_class_has_is_an_obstacle():
    others = ("embeddings", "values", "sequences")  # without such a layer
    for kind, options, word in [
        ("table", {"pooling": "mean"}, "finetuning.pooling=mean"),
        ("conll", {"feature_based": True}, "BiLSTM"),
        *((it, {"bilstm_size": 3}, "bilstm_size") for it in finetuning.KINDS if it not in others),
    ]:
        (obstacle,) = run_log.obstacles(finetuned(kind, **options), small_records.vocabulary())
        assert word in obstacle


def test_a_vocabulary_and_an_encoder_that_transformers_lacks_are_both_obstacles():
    config = config_lib.default_config()
    config.model.update(vocab_size=95, embedding_size=128, dtype="float32")
    model = test_sentence_piece.model(**test_sentence_piece.BERT, model_type="bpe")
    made = sentence_piece.SentencePieceTokenizer(model)
    vocabulary, sizes = run_log.obstacles(config, made)
    assert vocabulary.startswith("the vocabulary is of the kind sentencepiece: it is a model of t")
    assert "embedding_size 128" in sizes


def test_a_run_on_values_says_nothing_of_transformers(tmp_path, one_device, caplog):
    small_values.write(tmp_path / "r", "patches")
    run = train.prepare(small_values.make_config("patches", tmp_path / "r"), tmp_path / "run")
    assert run_log._of_run(run)
    run_log.start(run, tmp_path / "run")
    assert "transformers" not in caplog.text
