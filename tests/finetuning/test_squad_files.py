"""SQuAD's files, and windows whose positions are characters of the original context."""

import gzip
import json
import random

import numpy as np
import pytest

from bertjax.finetuning import squad_files
from bertjax.tokenization import tokenizer
from tests import small_byte_bpe

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz.,'?()1234567890博推ß"
CONTEXT = "Zoë's café (1920) was  in\nSão Paulo; the 博推 cafe\u0301 came later."


@pytest.fixture(scope="module")
def known():
    pieces = [*LETTERS, *(f"##{letter}" for letter in LETTERS), "cafe", "##ul", "later"]
    return tokenizer.WordPieceTokenizer([*SPECIALS, *pieces])


def record(number=0, question="Where?", text="São Paulo", start=None, **extra):
    start = CONTEXT.find(text) if start is None else start
    answers = [{"text": text, "answer_start": start}] if text else []
    return {"id": f"q{number}", "question": question, "answers": answers, **extra}


def document(*records, context=CONTEXT):
    paragraph = {"context": context, "qas": list(records)}
    return {"version": "1.1", "data": [{"title": "Zoë", "paragraphs": [paragraph]}]}


def write(path, content):
    path.write_text(json.dumps(content))
    return path


def question(context, *answers, text="Where is it?", name="q"):
    return squad_files.Question(
        name, text, context, tuple(squad_files.Answer(*answer) for answer in answers)
    )


def recovered(window, context, answer):
    first, last = window.positions(answer)
    shift = window.begin - window.context_position
    return context[window.context.starts[first + shift] : window.context.ends[last + shift]]


def test_questions_keep_every_answer_and_the_text_as_it_is(tmp_path):
    two = record(1, " Where? ")
    two["answers"].append({"text": "café", "answer_start": CONTEXT.find("café")})
    path = write(tmp_path / "dev.json", document(record(), two | {"id": 262}))
    first, second = squad_files.read_questions(path)
    assert (first.id, second.id, first.context) == ("q0", "262", CONTEXT)
    assert second.text == " Where? "
    assert [answer.text for answer in second.answers] == ["São Paulo", "café"]
    assert first.source == f"{path}: question 'q0'"
    packed = tmp_path / "dev.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    found = [question.answers for question in squad_files.read_questions(packed)]
    assert found == [first.answers, second.answers]


def test_misplaced_answers_are_moved_or_left_out_by_option_and_counted(tmp_path, caplog):
    place, context = CONTEXT.find("café"), f"{CONTEXT} aa {CONTEXT}"
    misplaced = [record(n, text="café", start=place + n) for n in range(-3, 4)]
    far, twice = record(8, text="café", start=place + 30), record(9, text="a", start=len(CONTEXT))
    both = record(10, text="café", start=place)
    both["answers"] += far["answers"]
    absent = record(11, text="nowhere", start=1)
    asked = document(*misplaced, far, twice, both, absent, context=context)
    path = write(tmp_path / "dev.json", asked)
    questions = squad_files.read_questions(path, repairs_answers=True)
    assert [question.id for question in questions] == [*(f"q{n}" for n in range(-3, 4)), "q10"]
    expected = (squad_files.Answer("café", place),)
    assert all(question.answers == expected for question in questions)
    assert "6 answers near their offset were moved, 4 that do not stand near it" in caplog.text
    assert "with them 3 questions" in caplog.text
    with pytest.raises(ValueError, match="--config.finetuning.repair_answers=True"):
        squad_files.read_questions(path)


def test_version_2_has_questions_without_answers(tmp_path):
    plausible = [{"text": "café", "answer_start": 6}]
    none = record(1, text="", is_impossible=True, plausible_answers=plausible)
    path = write(tmp_path / "dev.json", document(record(0, is_impossible=False), none))
    questions = squad_files.read_questions(path, version_2=True)
    assert [len(question.answers) for question in questions] == [1, 0]
    with pytest.raises(ValueError, match="dev.json: question 'q1': it has no answer.*version_2"):
        squad_files.read_questions(path)
    path = write(tmp_path / "test.json", document({"id": "x", "question": "Where?"}))
    assert squad_files.read_questions(path, labelled=False)[0].answers == ()
    with pytest.raises(ValueError, match="question 'x': the key 'answers' is missing"):
        squad_files.read_questions(path)


def changed(key, value):
    return document(record(is_impossible=False) | {key: value})


ANSWER = {"text": "São Paulo", "answer_start": 26}
# The contents of a file, JSON or bytes, and the words of the message.
FAULTS = [
    (
        document({"question": "?", "answers": [ANSWER]}),
        r"data\[0\].paragraphs\[0\].qas\[0\]: .*'id' is miss",
    ),
    (changed("question", " \n"), "question 'q0': 'question' is empty"),
    (changed("answers", None), "'answers' is None; it must be a list"),
    (changed("answers", [ANSWER | {"answer_start": True}]), "'answer_start' is True.*whole number"),
    (changed("answers", []), "it has no answer; .*is_impossible is false"),
    (changed("is_impossible", True), "is_impossible is true, but it has answers"),
    (document(record(start=25)), r"'São Paulo' is not in .* answer_start 25, .*first found at 26"),
    # From the end it is there.
    (document(record(start=26 - len(CONTEXT))), "not in its context at answer_start -"),
    (document("text"), "it is 'text'; it must be an object with the key 'id'"),
    ([], r"it is \[\]; it must be an object with the key 'data'"),
    ({"data": []}, "it holds no questions"),
    ({"data": [{"title": "x"}]}, r"data\[0\]: the key 'paragraphs' is missing"),
    ({"data": [{"paragraphs": [{"context": "a"}]}]}, r"paragraphs\[0\]: the key 'qas' is miss"),
    (document(context=" "), r"paragraphs\[0\]: 'context' is empty"),
    (document(*[record(is_impossible=False)] * 2), "question 'q0': the id stands twice"),
    (b'{"data":\n [}', ":2: it is not JSON"),
    (b'{"data": "\xff"}', "it cannot be read: .*utf-8"),
]


def test_a_fault_is_named_with_file_and_place(tmp_path):
    path = tmp_path / "train.json"
    for content, message in FAULTS:
        encoded = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(encoded)
        with pytest.raises(ValueError, match=f"train.json.*{message}"):
            squad_files.read_questions(path, version_2=True)
    packed = gzip.compress(path.read_bytes())
    for content in (b"{}", packed[:-9], packed[:10] + b"\xff" * 20):
        (tmp_path / "train.json.gz").write_bytes(content)
        with pytest.raises(ValueError, match="train.json.gz is damaged"):
            squad_files.read_questions(tmp_path / "train.json.gz")
    with pytest.raises(FileNotFoundError, match="missing.json does not exist"):
        squad_files.read_questions(tmp_path / "missing.json")
    # Ten faults are shown at once.
    write(path, document(*(record(n, question="") for n in range(13))))
    with pytest.raises(ValueError) as caught:
        squad_files.read_questions(path)
    lines = str(caught.value).splitlines()
    assert [f"question 'q{n}'" in line for n, line in enumerate(lines)] == [True] * 10 + [False]
    assert lines[-1] == "... and 3 more"


def test_an_answer_inside_a_token_gets_the_tightest_tokens_around_it(known):
    (window,) = squad_files.windows([question(CONTEXT)], known)
    assert recovered(window, CONTEXT, squad_files.Answer("at", CONTEXT.find("ater"))) == "later"
    assert recovered(window, CONTEXT, squad_files.Answer(" was ", CONTEXT.find(" was "))) == "was"
    assert window.positions(squad_files.Answer("  ", CONTEXT.find("  "))) == (0, 0)


def random_context(rng, words):
    made = ["éa", "Ab", "cafe\u0301", "1,2", "博推", "(x)", "later", "İß", "\u200bu\u00adv"]
    made.append("\u2028")
    return "".join(
        rng.choice(made) + rng.choice([" ", "  ", "\n", "", "\u3000"]) for _ in range(words)
    )


def test_every_answer_that_fits_in_a_window_is_recovered_exactly(known):
    rng = random.Random(3)
    contexts = [random_context(rng, words) for words in (1, 5, 30, 80, 120)]
    options = {"max_seq_length": 40, "doc_stride": 9, "max_query_length": 6}
    for window in squad_files.windows([question(text) for text in contexts], known, **options):
        context, tokens = contexts[window.question], window.context
        for _ in range(20):
            first = rng.randrange(len(tokens.ids))
            last = min(first + rng.randrange(12), len(tokens.ids) - 1)
            start, end = tokens.starts[first], tokens.ends[last]
            answer = squad_files.Answer(context[start:end], int(start))
            if first >= window.begin and last < window.end:
                assert recovered(window, context, answer) == answer.text
            elif (tokens.ends[:first] <= start).all() and (tokens.starts[last + 1 :] >= end).all():
                assert window.positions(answer) == (0, 0)


def test_rows_are_question_and_context_between_specials(known):
    text = "a b c d e f g h"
    options = {"max_seq_length": 10, "doc_stride": 2, "max_query_length": 3}
    asked = [question(text, text="who is it"), question("a b")]
    made = squad_files.windows(asked, known, **options)
    tokens = [[known.token(token_id) for token_id in w.input_ids.tolist()] for w in made]
    query = ["[CLS]", "w", "##h", "##o", "[SEP]"]
    assert tokens == [
        [*query, "a", "b", "c", "d", "[SEP]"],
        [*query, "c", "d", "e", "f", "[SEP]"],
        [*query, "e", "f", "g", "h", "[SEP]"],
        ["[CLS]", "w", "##h", "##e", "[SEP]", "a", "b", "[SEP]"],
    ]
    assert [window.question for window in made] == [0, 0, 0, 1]
    features = squad_files.window_rows([question(text), question("a b")], made, known)
    assert features.tokens["segment_ids"][0].tolist() == [0] * 5 + [1] * 5
    assert features.tokens["segment_ids"][3].tolist() == [0] * 5 + [1] * 3
    assert features.pad_id == known.pad_id and len(features) == 4
    with pytest.raises(ValueError, match="max_seq_length is 67; it must be at least 68"):
        squad_files.windows([question("a")], known, max_seq_length=67)
    assert squad_files.windows([question("a")], known, max_seq_length=68)


def test_windows_cover_every_token_and_each_has_its_best_context_once(known):
    # The rule as the released code has it, token by token.
    for size, room, stride in [(0, 5, 2), (1, 5, 2), (5, 5, 2), (6, 5, 2), (47, 9, 4), (30, 4, 9)]:
        ranges = squad_files._ranges(size, room, stride)
        assert all(end - begin <= room for begin, end, _ in ranges)
        begins = [n * min(stride, room) for n in range(len(ranges))]
        assert [begin for begin, _, _ in ranges] == begins
        assert sum(end == size for _, end, _ in ranges) == 1 and ranges[-1][1] == size
        for token in range(size):
            scores = [
                min(token - begin, end - 1 - token) + 0.01 * (end - begin)
                if begin <= token < end
                else -1
                for begin, end, _ in ranges
            ]
            best = scores.index(max(scores))
            for place, (begin, end, has_max_context) in enumerate(ranges):
                if begin <= token < end:
                    assert has_max_context[token - begin] == (place == best)


def test_windows_without_the_whole_answer_and_unanswerable_ones_point_to_cls(known):
    text = "a b c d e f g h"
    questions = [question(text, ("d e", 6), ("a", 0)), question(text), question(text, ("h", 14))]
    options = {"max_seq_length": 10, "doc_stride": 2, "max_query_length": 3}
    made = squad_files.windows(questions, known, **options)
    columns = squad_files.window_rows(questions, made, known).columns
    # abcd cdef efgh; the context begins at 5.
    assert columns["start_positions"].tolist() == [0, 6, 0, 0, 0, 0, 0, 0, 8]
    assert columns["end_positions"].tolist() == [0, 7, 0, 0, 0, 0, 0, 0, 8]
    assert columns["start_positions"].dtype == np.int32
    assert squad_files.window_rows(questions, made, known, labelled=False).columns == {}


def test_a_context_that_has_no_tokens_is_one_window_that_points_to_cls(known):
    (window,) = squad_files.windows([question("\u200b", ("\u200b", 0))], known)
    assert window.end == window.begin == 0
    assert window.positions(squad_files.Answer("\u200b", 0)) == (0, 0)


def test_answers_are_found_by_their_places_in_a_byte_level_bpe():
    known = small_byte_bpe.vocabulary()
    context = "the runner (Élan) ran\u3000home, 家 water"
    answers = ["runner", "Élan", "home", "家 water", "the", "lan"]
    questions = [
        question(context, (answer, context.index(answer)), text="who ran", name=answer)
        for answer in answers
    ]
    made = squad_files.windows(questions, known, max_seq_length=128, doc_stride=4)
    for asked, window in zip(questions, made, strict=True):
        ids = window.input_ids.tolist()
        sep = known.sep_id
        assert ids[: window.context_position] == [known.cls_id, *known.encode("who ran"), sep, sep]
        assert recovered(window, context, asked.answers[0]) == asked.id
