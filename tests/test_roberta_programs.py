"""Claims about a RoBERTa in the programs: masks, features, scores, finetuning."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import encode, fill_mask, inference, models, train
from bertjax.convert import workdir
from bertjax.inference import likelihood
from bertjax.models import parameters
from tests import small_byte_bpe, small_datasets
from tests.convert import weights


def write_source(directory, vocabulary, *, scale=0.1):
    """Writes a workdir with random weights of two layers and the masked-token head."""
    config = models.EncoderConfig(
        **{"vocab_size": vocabulary.vocab_size, "hidden_size": 32, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64},
        **{"position_offset": 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
        initializer="normal",
    )
    made = weights.make(
        "masked_lm", config=config, vocabulary=vocabulary, scale=scale, norm_scale=1.0
    )
    workdir.write(made, directory)
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("source") / "run"
    return inference.load(write_source(directory, small_byte_bpe.vocabulary(), scale=0.3))


def test_masks_are_filled_with_tokens_and_their_blanks(model):
    known = model.vocabulary
    text = "the <mask> ran [MASK]."
    masks = fill_mask.fill_mask(model, text, num_candidates=known.vocab_size)
    assert len(masks) == 2
    probabilities = {c["token"]: c["probability"] for c in masks[0]}
    assert {" the", "!", "<mask>"} <= probabilities.keys()
    assert sum(c["probability"] for c in masks[0]) == pytest.approx(1, abs=1e-3)
    chosen = [[{"token": " runner"}], [{"token": " home"}]]
    assert fill_mask.filled(known.split_at_masks(text), chosen) == "the **runner** ran **home**."
    # Where the blank before a mask stands makes no difference: it is the mask's.
    (same, _) = fill_mask.fill_mask(model, "the<mask> ran<mask>.", num_candidates=1)
    assert same == masks[0][:1]


def test_features_are_those_of_the_encoder_between_its_specials(model):
    known = model.vocabulary
    texts = ["the runner", "they don't want\nwater 家"]
    found = encode.encode(model, texts, pooling="none")
    ids = [[known.cls_id, *known.encode(text), known.sep_id] for text in texts]
    assert found["input_ids"].tolist() == [token_id for row in ids for token_id in row]
    run = jax.jit(lambda params, batch: parameters.merge(model.graphdef, params).encoder(batch))
    batch = {"input_ids": jnp.array(ids[:1]), "input_mask": jnp.ones((1, len(ids[0])), jnp.int32)}
    expected = np.asarray(run(model.params, batch))[0]
    np.testing.assert_allclose(found["features"][: len(ids[0])], expected, atol=1e-5)


def test_a_text_is_scored_piece_by_piece_and_word_by_word(model):
    texts = ["the runners ran", "the runners ran"]
    by_token, by_word = (
        list(likelihood.scores(model, texts, masking=masking, batch_size=8))
        for masking in ("token", "word_to_right")
    )
    count = len(model.vocabulary.encode(texts[0]))
    assert isinstance(by_token[0], likelihood.Score) and by_token[0] == by_token[1]
    assert by_token[0].num_tokens == by_word[0].num_tokens == count > 3
    # " runners" has several pieces: those to the right are hidden, too.
    assert by_token[0].log_likelihood != by_word[0].log_likelihood


@pytest.mark.slow
@pytest.mark.usefixtures("one_device", "quick_runs")
def test_spans_are_learnt_to_a_perfect_score(tmp_path):
    """Words such as w17 are three or four tokens here."""
    source = write_source(tmp_path / "source", small_byte_bpe.vocabulary(size=400))
    changes = {
        **{"finetuning.num_epochs": 120.0, "finetuning.length_buckets": False},
        **{"finetuning.max_seq_length": 64, "finetuning.doc_stride": 16},
        **{"finetuning.max_query_length": 8, "evaluation.every_steps": 240},
    }
    config = small_datasets.make_config(tmp_path / "data", "squad_v1", source, **changes)
    train.train(config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    scores = [it for it in map(json.loads, lines) if "eval/dev/loss" in it]
    assert scores[-1]["eval/dev/f1"] >= 99.0
