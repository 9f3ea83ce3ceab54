"""Answers from logits: the released rules token by token, and the files that it writes."""

import json

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from bertjax.finetuning import spans, squad_files
from bertjax.tokenization import tokenizer

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "who", "."]
CONTEXT = "A b  c d; \u00c9 f g. h i b"  # b stands twice
OPTIONS = {"max_seq_length": 10, "doc_stride": 3, "max_query_length": 2}


@pytest.fixture(scope="module")
def known():
    return tokenizer.WordPieceTokenizer([*SPECIALS, *WORDS])


def ask(context=CONTEXT, name="q"):
    return squad_files.Question(name, "who", context)


def predict(questions, windows, starts, ends, **options):
    rows = squad_files.WindowRows({"input_ids": []}, {}, questions=questions, windows=windows)
    return spans.best_spans(rows, {"start_logits": starts, "end_logits": ends}, **options)


def flat(windows, value=0.0):
    return [np.full(12, value, np.float32) for _ in windows]


def random_logits(windows, seed):
    rng = np.random.default_rng(seed)
    return [np.round(rng.normal(size=12) * 3, 1).astype(np.float32) for _ in windows]


def released(question, windows, starts, ends, *, version_2, n_best_size, max_answer_length):
    """The rules of write_predictions, loop for loop; n-best texts with logits, score difference."""
    prelim, null = [], None
    for window, start_logits, end_logits in zip(windows, starts, ends, strict=True):
        size = len(window.input_ids)
        order = [
            sorted(range(size), key=lambda n, logits=logits: -logits[n])[:n_best_size]
            for logits in (start_logits, end_logits)
        ]
        cls = (float(start_logits[0]), float(end_logits[0]))
        null = cls if null is None or sum(cls) < sum(null) else null
        for first in order[0]:
            for last in order[1]:
                i, j = first - window.context_position, last - window.context_position
                inside = 0 <= i < window.end - window.begin and 0 <= j < window.end - window.begin
                fits = inside and 0 <= j - i < max_answer_length
                if not (fits and window.has_max_context[i]):
                    continue
                starts_at = window.context.starts[window.begin + i]
                text = question.context[starts_at : window.context.ends[window.begin + j]]
                prelim.append((text, float(start_logits[first]), float(end_logits[last])))
    if version_2:
        prelim.append(("", *null))
    nbest = []
    for text, start, end in sorted(prelim, key=lambda found: -(found[1] + found[2])):
        if len(nbest) < n_best_size and text not in [kept[0] for kept in nbest]:
            nbest.append((text, start, end))
    if version_2 and "" not in [kept[0] for kept in nbest]:
        nbest.append(("", *null))
    best = next((sum(kept[1:]) for kept in nbest if kept[0]), None)
    return nbest, None if best is None else sum(null) - best


@pytest.mark.parametrize("version_2", [False, True])
def test_predictions_are_those_of_the_released_rules(known, version_2):
    windows = squad_files.windows([ask()], known, **OPTIONS)
    assert len(windows) > 2
    for most, longest in ((20, 30), (4, 2), (3, 1)):
        options = {"version_2": version_2, "n_best_size": most, "max_answer_length": longest}
        compared = 0
        for seed in range(100):
            starts, ends = random_logits(windows, seed), random_logits(windows, seed + 1000)
            expected, difference = released(ask(), windows, starts, ends, **options)
            if difference is None:
                continue  # The released code has no answer then.
            compared += 1
            made = predict([ask()], windows, starts, ends, **options)
            found = [(one.text, one.start_logit, one.end_logit) for one in made.nbest["q"]]
            assert found == expected
            assert sum(one.probability for one in made.nbest["q"]) == pytest.approx(1)
            if version_2:
                assert made.score_differences["q"] == pytest.approx(difference)
        assert compared > 25


def test_answers_are_original_characters(known):
    (window,) = squad_files.windows([ask()], known)
    # The context's tokens: a b c d [UNK] e f g . h i b
    for first, last, text in (
        *((0, 0, "A"), (1, 3, "b  c d"), (4, 6, "; \u00c9 f"), (5, 5, "\u00c9")),
        (9, 11, "h i b"),
    ):
        starts, ends = np.zeros(20), np.zeros(20)
        starts[window.context_position + first] = ends[window.context_position + last] = 9
        assert predict([ask()], [window], [starts], [ends]).answers() == {"q": text}


def test_a_piece_that_is_only_white_space_adds_nothing_and_is_no_answer():
    # As a sentencepiece model has it: "a", the lone mark of a word's start, "b".
    places = np.array([[7, 8, 9], [0, 3, 3], [1, 3, 4]], np.int32)
    context = squad_files.TokenizedContext(*places)
    row = np.arange(6, dtype=np.int32)
    window = squad_files.Window(0, row, context, 0, 3, 2, np.ones(3, bool))
    starts, ends = [np.array([0, 0, 5, 6, 1, 0.0])], [np.array([0, 0, 0, 5, 1, 0.0])]
    made = predict([ask("a  b")], [window], starts, ends)
    assert [one.text for one in made.nbest["q"]] == ["a", "b", "a  b"]


def test_padding_changes_nothing(known):
    questions = [ask(), ask("a b", "r")]
    windows = squad_files.windows(questions, known, **OPTIONS)
    starts, ends = random_logits(windows, 1), random_logits(windows, 2)
    made = predict(questions, windows, starts, ends, version_2=True)
    for window, start_logits, end_logits in zip(windows, starts, ends, strict=True):
        start_logits[len(window.input_ids) :] = np.nan
        end_logits[len(window.input_ids) :] = 99.0
    assert predict(questions, windows, starts, ends, version_2=True) == made


def test_a_question_whose_best_starts_and_ends_do_not_fit_has_an_answer_all_the_same(known):
    (window,) = squad_files.windows([ask("a b c")], known)
    starts, ends = np.zeros(7), np.zeros(7)
    starts[window.context_position + 2] = ends[window.context_position] = 9.0
    starts[0] = ends[0] = 8.0
    options = {"version_2": True, "n_best_size": 2}
    made = predict([ask("a b c")], [window], [starts], [ends], **options)
    assert made.best_answers()["q"] in ("a", "c")
    assert made.score_differences["q"] == 16.0 - 9.0


def test_the_null_score_is_the_lowest_of_all_windows_and_the_threshold_decides(known):
    windows = squad_files.windows([ask()], known, **OPTIONS)
    starts, ends = flat(windows), flat(windows)
    for place, logits in enumerate(starts):
        logits[0] = 5.0 - place
    starts[0][windows[0].context_position] = 1.5
    made = predict([ask()], windows, starts, ends, version_2=True)
    lowest = 5.0 - (len(windows) - 1)
    assert made.score_differences == {"q": lowest - 1.5}
    assert made.answers(lowest - 1.5)["q"].startswith("A")
    assert made.answers(lowest - 1.6) == {"q": ""}
    assert made.best_answers()["q"].startswith("A")


def test_a_context_without_tokens_is_answered_with_nothing_and_nan_is_refused(known):
    question = ask("\u200b")
    windows = squad_files.windows([question], known)
    for version_2 in (False, True):
        made = predict([question], windows, flat(windows, 1), flat(windows, 1), version_2=version_2)
        assert made.answers() == {"q": ""} and len(made.nbest["q"]) == 1
    with pytest.raises(ValueError, match="logits of a window hold NaN"):
        predict([question], windows, flat(windows, np.nan), flat(windows))


QUESTION = strategies.tuples(
    strategies.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0]),  # differences, some of them equal
    strategies.sampled_from([0.0, 0.4, 1.0]),
    strategies.booleans(),
)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(strategies.lists(QUESTION, min_size=1, max_size=9))
def test_the_tuned_threshold_gives_the_best_score_of_all_thresholds(questions):
    differences, scores, answerable = (
        {str(name): value for name, value in enumerate(values)}
        for values in zip(*questions, strict=True)
    )

    def score(threshold):
        won = [
            float(not answerable[name])
            if differences[name] > threshold
            else scores[name] * answerable[name]
            for name in differences
        ]
        return sum(won) / len(won)

    threshold, best = spans.tune_threshold(differences, scores, answerable)
    assert best == pytest.approx(score(threshold))
    assert best == pytest.approx(max(score(t) for t in (-9.0, *differences.values())))


def test_the_official_files_are_written(known, tmp_path):
    questions = [ask(), ask("\u00c9 f", "r")]
    windows = squad_files.windows(questions, known, **OPTIONS)
    starts, ends = random_logits(windows, 5), random_logits(windows, 6)
    made = predict(questions, windows, starts, ends, version_2=True)
    spans.write_files(made, tmp_path / "out", -1e9)
    files = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert sorted(files) == ["nbest_predictions.json", "null_odds.json", "predictions.json"]
    assert files["predictions.json"] == {"q": "", "r": ""}
    assert files["null_odds.json"] == made.score_differences
    keys = ["text", "probability", "start_logit", "end_logit"]
    assert list(files["nbest_predictions.json"]["q"][0]) == keys
    first = predict(questions, windows, starts, ends)
    spans.write_files(first, tmp_path / "v1")
    assert not (tmp_path / "v1" / "null_odds.json").exists()
    assert json.loads((tmp_path / "v1" / "predictions.json").read_text()) == first.answers()
