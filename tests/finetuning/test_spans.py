"""Claims about questions on texts."""

import json
import re

import pytest
from etils import epath

from tests import small_datasets


def test_answers_that_no_window_holds_are_counted_and_the_first_is_named(open_kind, caplog):
    open_kind("squad_v1")[1].features("train")
    assert "in no window" not in caplog.text
    _, reader = open_kind("squad_v1", max_seq_length=8)  # 3 tokens of context
    rows = reader.features("train")
    starts = rows.columns["start_positions"]
    found = {it.question for it, start in zip(rows.windows, starts, strict=True) if start}
    assert 0 < len(found) < 16
    assert f"{16 - len(found)} of 16 questions have an answer that is whole in no" in caplog.text
    assert re.search(r"such as .*train\.json: question 'q\d+'", caplog.text)


@pytest.mark.parametrize(
    ("tuned", "option", "is_silent"),
    [(-100.0, 100.0, True), (100.0, -100.0, False), (None, -100.0, True), (None, 100.0, False)],
)
def test_the_tuned_threshold_decides_and_the_option_only_before(
    tmp_path, open_kind, tuned, option, is_silent
):
    scorer, reader = open_kind("squad_v2", null_threshold=option)
    found = {} if tuned is None else {"null_threshold": tuned}
    outputs = small_datasets.true_answers(reader, "dev")
    scorer.write_predictions("test", outputs, epath.Path(tmp_path), found)
    written = json.loads((tmp_path / "test/predictions.json").read_text())
    assert len(written) == 16
    assert all((answer == "") == is_silent for answer in written.values())


def test_the_score_that_is_tuned_is_one_that_the_kind_says_it_tunes(open_kind):
    for name, has_answers in (("squad_v1", True), ("squad_v2", False)):
        scorer, reader = open_kind(name)
        scores = scorer.scores("dev", small_datasets.true_answers(reader, "dev"))
        assert (set(scorer.tunes) <= scores.keys()) != has_answers
