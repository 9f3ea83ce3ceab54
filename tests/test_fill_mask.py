"""Claims about filled masks as they are printed, and about models that have learnt nothing."""

import dataclasses

import numpy as np
import pytest

from bertjax import fill_mask, inference
from bertjax.convert import formats
from tests import programs, small_records
from tests.convert import weights

ORDINARY = [
    "She opened the [MASK] and went into the room.",
    "Ich habe gestern einen [MASK] im Wald gesehen.",
    "今天天气很[MASK]。",
    "Идёт [MASK] и светит солнце.",
    "Mon chat dort sur le [MASK].",
    "x = [MASK](a, b)",
    "a [MASK]",
    "[MASK] 2",
]


def written(directory, *, learnt):
    """A model that always predicts by its output bias, or one that also reads the tokens."""
    made = weights.make("masked_lm", norm_scale=1.0)
    if not learnt:
        params = {
            path: value if path == "mlm_head.output_bias" else 0.01 * value
            for path, value in made.params.items()
        }
        made = dataclasses.replace(made, params=params)
    formats.write(made, directory, format="huggingface")
    return directory


def test_a_model_of_frequencies_alone_is_told_from_one_that_reads(tmp_path, caplog):
    for learnt in (False, True):
        caplog.clear()
        source = written(tmp_path / str(learnt), learnt=learnt)
        done = programs.run("bertjax.fill_mask", f"--checkpoint={source}", "w1 [MASK] w2 w3")
        first = done.output.decode().splitlines()[0]
        assert not done.error and first.startswith("w1 **") and first.endswith("** w2 w3")
        assert ("has learnt nothing" in caplog.text) is not learnt


def test_without_a_second_token_nothing_is_said_of_the_model(tmp_path):
    model = inference.load(written(tmp_path / "model", learnt=False))
    assert fill_mask.ignores_context(model, "w1 [MASK]")
    assert not fill_mask.ignores_context(model, "[MASK]")


def test_rows_of_the_table_that_no_entry_has_fill_no_mask(tmp_path):
    known = small_records.vocabulary()
    config = dataclasses.replace(weights.CONFIG, vocab_size=known.vocab_size + 50)
    made = weights.make("masked_lm", config=config, vocabulary=known)
    bias = np.where(np.arange(config.vocab_size) < known.vocab_size, 0, 1e3).astype(np.float32)
    made = dataclasses.replace(made, params={**made.params, "mlm_head.bias": bias})
    formats.write(made, tmp_path / "model", format="huggingface")
    model = inference.load(tmp_path / "model")
    (found,) = fill_mask.fill_mask(model, "w1 [MASK] w2", num_candidates=10**6)
    assert {it["token"] for it in found} == {*known.vocabulary}


def test_the_model_that_comes_with_bertjax_reads_ordinary_sentences_of_any_language():
    model = inference.load("babylm-mini")
    assert [text for text in ORDINARY if fill_mask.ignores_context(model, text)] == []


@pytest.mark.parametrize(("token", "shown"), [("door", "**door**"), (" ", "**' '**")])
def test_what_was_put_in_is_marked(token, shown):
    assert fill_mask.filled(["the ", "."], [[{"token": token}]]) == f"the {shown}."
    assert fill_mask.filled(["a", ""], [[{"token": " b"}]]) == "a **b**"
