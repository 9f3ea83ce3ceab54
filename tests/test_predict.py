"""Claims about predictions for JSON lines: the model's own, in order, alone or in a batch."""

import functools
import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import inference, predict
from bertjax.finetuning import feature_sets, tag_schemes
from bertjax.jobs import finetuning as finetuning_job
from bertjax.models import parameters
from bertjax.tasks import base as tasks_base
from tests import finetuned_workdir, programs

WORDS = [f"w{number}" for number in range(90)]
CONTEXT = "W3 W4, (W5) " + " ".join(WORDS[6:40]).upper()

PAIR, LONG = ("w6", "w7"), " ".join(WORDS)
# Name -> the data set, its options and some lines, of unequal lengths.
CASES = {
    "glue": (
        "glue",
        {},
        [{"sentence1": "w1 w2", "sentence2": t} for t in ("w3", "w5 w6", LONG)],
    ),
    "table": ("table", {"pooling": "mean"}, [{"text": t} for t in ("w1", CONTEXT, "w7 w8")]),
    "regression": (
        "table",
        {"is_regression": True, "second_text_column": "other"},
        [{"text": "w1", "other": "w2 w3"}, {"text": "w4 w5", "other": "w6"}],
    ),
    "multi_label": ("table", {"is_multi_label": True}, [{"text": t} for t in ("w1", CONTEXT)]),
    "v1": ("squad", {}, [{"question": "w1", "context": c} for c in (CONTEXT, "w5 w6", CONTEXT)]),
    "v2": ("squad", {"name": "v2"}, [{"question": q, "context": CONTEXT} for q in ("w1", "w60")]),
    "conll": ("conll", {}, [{"words": WORDS[:50]}, {"words": ["W1", "w2w3"]}, {"words": ["x"]}]),
    "bilstm": (
        *("squad", {"bilstm_size": 6}),
        [{"question": "w1", "context": c} for c in ("w5 w6", CONTEXT)],
    ),
    "plain": (
        *("conll", {"name": "plain", "labels": ("NN", "VB")}),
        [{"words": ["w1", "w2"]}, {"words": ["w3"]}],
    ),
    "swag": ("swag", {}, [{"context": "w1", "endings": ["w2 w3", "w4", "w5", it]} for it in PAIR]),
}


@pytest.fixture(autouse=True)
def devices(monkeypatch):
    """One device, unless a test asks for more."""
    every = jax.local_devices()
    monkeypatch.setattr(jax, "devices", lambda: every[:1])
    return lambda count: monkeypatch.setattr(jax, "devices", lambda: every[:count])


@pytest.fixture(scope="module")
def model():
    """Returns the model of a case, loaded once."""

    @functools.cache
    def of(name):
        dataset, options, _ = CASES[name]
        return inference.load_finetuned(finetuned_workdir.made(dataset, **options))

    return of


def assert_same(got, wanted):
    """Equal but for the rounding of other batch shapes."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert a == (pytest.approx(b, abs=1e-5) if isinstance(b, float) else b)


@pytest.mark.parametrize("name", CASES)
def test_an_answer_does_not_depend_on_the_lines_around_it(name, model):
    lines = CASES[name][2]
    alone = [a for line in lines for a in predict.predict(model(name), [line], batch_size=4)]
    together = list(predict.predict(model(name), lines * 3, batch_size=4))
    assert_same(together, alone * 3)
    assert len({json.dumps(answer) for answer in alone}) > 1  # an order could be wrong


def test_several_devices_share_the_rows(model, devices):
    lines = CASES["glue"][2] * 5
    wanted = list(predict.predict(model("glue"), lines, batch_size=4))
    devices(4)
    spread = inference.load_finetuned(finetuned_workdir.made("glue"))
    assert spread.mesh.size == 4
    assert_same(list(predict.predict(spread, lines, batch_size=2)), wanted)


def test_the_class_and_the_probabilities_are_those_of_the_models_logits(model):
    ours, line = model("glue"), CASES["glue"][2][1]
    (ids,), (segments,) = feature_sets.sequence_pairs(
        ours.vocabulary, [line["sentence1"]], [line["sentence2"]], max_seq_length=32
    )
    module = parameters.merge(ours.graphdef, jax.tree.map(jnp.asarray, ours.params))
    rows = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    batch = {name: jnp.asarray(row)[None] for name, row in rows.items()}
    logits = jax.jit(lambda batch: module(batch))(batch)[0]
    (answer,) = predict.predict(ours, [line], batch_size=4)
    labels = finetuned_workdir.LABELS["glue"]
    wanted = dict(zip(labels, np.asarray(jax.nn.softmax(logits)).tolist(), strict=True))
    assert answer["probabilities"] == pytest.approx(wanted, abs=1e-5)
    assert answer["label"] == labels[int(logits.argmax())]


def test_labels_are_decisions_of_their_own(model):
    lines = [{"text": f"w{number}"} for number in range(20)]
    answers = list(predict.predict(model("multi_label"), lines, batch_size=4))
    labels = finetuned_workdir.LABELS["table"]
    for answer in answers:
        assert tuple(answer["probabilities"]) == labels
        assert answer["labels"] == [it for it in labels if answer["probabilities"][it] > 0.5]
    assert len({len(answer["labels"]) for answer in answers}) > 1
    sums = [sum(answer["probabilities"].values()) for answer in answers]
    assert max(abs(total - 1) for total in sums) > 0.1  # no softmax


def test_tags_name_entities_by_the_places_of_their_words(model):
    (answer,) = predict.predict(model("conll"), CASES["conll"][2][:1], batch_size=4)
    assert len(answer["tags"]) == 50
    assert answer["entities"]
    covered = set()
    for entity in answer["entities"]:
        places = range(entity["start"], entity["end"])
        assert entity["text"] == " ".join(WORDS[: len(answer["tags"])][p] for p in places)
        assert {answer["tags"][place][2:] for place in places} == {entity["type"]}
        covered |= set(places)
    assert covered == {place for place, tag in enumerate(answer["tags"]) if tag != "O"}


def test_a_wider_step_reads_no_more_of_an_endless_input_than_it_says(model):
    count = itertools.count()
    lines = ({"text": f"w{number}", "id": number} for number in count)
    answers = predict.predict(model("table"), lines, batch_size=16)
    first = list(itertools.islice(answers, 300))
    assert [answer["id"] for answer in first] == list(range(300))
    assert next(count) <= 2 * predict.BATCHES_READ * 16 + 1


@pytest.mark.slow
@pytest.mark.usefixtures("quick_runs")
def test_lora_is_merged_and_answers_as_it_did_in_training(tmp_path):
    config = finetuned_workdir.write(tmp_path, "table", lora_rank=3, lora_alpha=7.0)
    ours = inference.load_finetuned(tmp_path)
    assert set(ours.params) == {"encoder", "pooler", "classifier"}
    with_factors = finetuning_job.finetuning_task(config)
    params = finetuned_workdir.random_params(config)
    assert "lora" in params
    graphdef, _ = tasks_base.abstract_model(with_factors)
    (ids,), (segments,) = feature_sets.sequence_pairs(ours.vocabulary, ["w1 w2"], max_seq_length=32)
    rows = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    batch = {key: jnp.asarray(row)[None] for key, row in rows.items()}
    module = parameters.merge(graphdef, jax.tree.map(jnp.asarray, params))
    logits = with_factors.predict(module, batch)["logits"][0]
    (answer,) = predict.predict(ours, [{"text": "w1 w2"}])
    wanted = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(list(answer["probabilities"].values()), wanted, atol=1e-5)
    encoded = inference.load(tmp_path)  # and what `encode` reads is merged, too
    query = ("layers", "0", "attention", "query", "kernel")
    kernels = [ours.params["encoder"], encoded.params["encoder"], params["encoder"]]
    for part in query:
        kernels = [kernel[part] for kernel in kernels]
    np.testing.assert_array_equal(kernels[0], kernels[1])
    assert np.abs(kernels[0] - kernels[2]).max() > 0.01


def test_no_answer_is_given_above_the_threshold_that_is_stored(model):
    for threshold in (-1e9, 1e9):
        options = {"name": "v2", "null_threshold": threshold}
        loaded = inference.load_finetuned(finetuned_workdir.made("squad", **options))
        (answer,) = predict.predict(loaded, CASES["v2"][2][:1], batch_size=4)
        assert bool(answer["answer"]) == (threshold > 0)
        assert answer["answer"] in CONTEXT
        assert -1e9 < answer["score_difference"] < 1e9
    for name in ("table", "v1"):
        with pytest.raises(ValueError, match="--null_threshold=2 is for models of SQuAD v2.0"):
            predict._with_threshold(model(name), 2.0)


WRONG = [
    ("table", {"txt": "w1"}, "line 2: the key 'text' is missing; its keys are 'txt'"),
    ("table", {"text": " "}, "line 2: 'text' is empty; it must be a text"),
    ("glue", {"sentence1": "w1", "sentence2": None}, "line 2: 'sentence2' is None; it must be"),
    ("v1", {"question": "w1", "context": 3}, "line 2: 'context' is 3; it must be a text"),
    ("conll", {"words": "w1 w2"}, "line 2: 'words' is 'w1 w2'; it must be a list of texts"),
    ("conll", {"words": ["w1", ""]}, "line 2: 'words' is .*none of them empty"),
    ("swag", {"context": "w", "endings": ["w"]}, "line 2: 'endings' has 1 texts; it must have"),
    ("swag", ["w1"], "line 2: it is .'w1'.; it must be an object"),
]


def test_lines_that_are_wrong_are_named_ten_at_once(model):
    for name, line, message in WRONG:
        with pytest.raises(ValueError, match=message):
            list(predict.predict(model(name), [CASES[name][2][0], line], batch_size=4))
    with pytest.raises(ValueError, match="(?s)^12 faults.*line 1: .*line 10: ") as caught:
        list(predict.predict(model("table"), [{}] * 12, batch_size=4))
    assert "line 11" not in str(caught.value)


def test_the_program_writes_a_line_for_each_line_with_its_id():
    workdir = finetuned_workdir.made("squad", name="v2")
    lines = [{**line, "id": f"no {n}"} for n, line in enumerate(CASES["v2"][2])]
    done = programs.succeed(
        *("bertjax.predict", f"--checkpoint={workdir}", "--null_threshold=-1e9", "--strict"),
        lines=tuple(map(json.dumps, lines)),
    )
    answers = [(answer["id"], answer["answer"]) for answer in done.lines]
    assert answers == [("no 0", ""), ("no 1", "")]


BAD = [
    b'{"id": 1, "text": "w1"}',
    b"",
    b'{"id": 3, "text": 4}',
    b'{"id": 4, "text": "w2 \xff"}',
    b"[" * 100_000,
    b'{"id": 6, "text": "w3", "other": "\\ud800"}',
    b'{"id": "\\ud800"}',
    b"7",
    b'{"id": 9, "text": "w5"}',
]


def test_a_bad_line_is_answered_with_its_error_and_the_others_with_theirs():
    program = ("bertjax.predict", f"--checkpoint={finetuned_workdir.made('table')}")
    done = programs.run(*program, raw=b"\n".join(BAD) + b"\n")
    assert done.error == (
        "bertjax: 6 of 9 lines could not be used; the answer to each has an 'error' that says why"
    )
    answers = done.lines
    assert [place for place, answer in enumerate(answers) if "label" in answer] == [0, 5, 8]
    ids = [1, None, 3, None, None, 6, "\ud800", None, 9]
    assert [answer.get("id") for answer in answers] == ids
    said = [
        *("line 2: it is not JSON", "line 3: 'text' is 4; it must be a text"),
        *("line 4: it is not UTF-8 .*--enc", "line 5: it is not JSON .*nested too deeply"),
        *("line 7: the key 'text' is missing", "line 8: it is 7; it must be an object"),
    ]
    for message, answer in zip(said, (answers[it] for it in (1, 2, 3, 4, 6, 7)), strict=True):
        assert re.match(message, answer["error"]), answer
    strict = programs.run(*program, "--strict", raw=b"\n".join(BAD) + b"\n")
    assert strict.error.startswith("bertjax: 6 faults:\nline 2: it is not JSON")
    assert strict.output == b""


def test_the_program_reads_tables_with_a_header_too():
    program = ("bertjax.predict", f"--checkpoint={finetuned_workdir.made('table')}")
    texts = ["w1, w2; w3", "w4\nw5"]
    lines = tuple(json.dumps({"id": str(n), "text": text}) for n, text in enumerate(texts))
    wanted = programs.succeed(*program, lines=lines).lines
    for delimiter, option in ((",", "auto"), (";", "auto"), ("\t", "tab"), ("#", "#")):
        rows = [delimiter.join(row) for row in (("id", "text"), ("0", f'"{texts[0]}"'))]
        table = "\ufeff" + "\r\n".join([*rows, "torn", f'1{delimiter}"{texts[1]}"'])
        done = programs.run(*program, f"--delimiter={option}", raw=table.encode())
        first, torn, last = done.lines
        assert_same([first, last], wanted)
        assert torn["error"].startswith("line 2: the row has 1 columns")
    done = programs.run(*program, raw="\r".join(lines).encode())
    assert_same(done.lines, wanted)
    done = programs.run(*program, raw=b"id;text\n")
    assert "line 1: it is not JSON" in done.lines[0]["error"]
    assert "--delimiter=auto" in done.lines[0]["error"]
    done = programs.run(*program, "--delimiter=;;", raw=b"")
    assert "--delimiter is ';;'; it must be auto, tab or one character" in done.error
    done = programs.run(*program, "--delimiter=auto", raw=b"text,id\ncaf\xe9,1\n")
    assert "standard input:2: it is not UTF-8" in done.error
    assert "perhaps it is cp1252, which reads 'text,id café,1'" in done.error
    done = programs.run(*program, raw='{"text": "Все люди рождаются"}\n'.encode("koi8-r") * 2)
    first, second = (answer["error"] for answer in done.lines)
    assert re.match("line 1: it is not UTF-8 .*koi8-r.* give --enc", first)
    assert re.match("line 2: it is not UTF-8 .*[)]$", second)
    raw = "text,id\ncafé w1,1\n"
    for flags in (("--delimiter=auto", "--encoding=utf-16"), ("--encoding=cp1252",)):
        given = raw if len(flags) > 1 else '{"text": "café w1", "id": "1"}\n'
        done = programs.run(*program, *flags, raw=given.encode(flags[-1].partition("=")[2]))
        assert [answer["unknown_rate"] for answer in done.lines] == [0.5] and not done.error
    done = programs.run(*program, "--encoding=cp12", raw=b"")
    assert "--encoding is 'cp12'; it must be an encoding of text" in done.error


def test_a_line_of_which_no_rows_can_be_made_is_found_among_others(model, monkeypatch):
    kind = model("table").kind.reader
    original = kind.rows

    def rows(self, examples):
        if any("w13" in example.texts[0] for example in examples):
            raise ValueError("13 is not a word")
        return original(self, examples)

    monkeypatch.setattr(kind, "rows", rows)
    lines = [{"text": f"w{number}"} for number in range(20)]
    answers = list(predict.predict(model("table"), lines, batch_size=4, strict=False))
    assert [n for n, answer in enumerate(answers) if "error" in answer] == [13]
    assert answers[13] == {"error": "line 14: 13 is not a word"}
    with pytest.raises(ValueError, match="line 14: 13 is not a word"):
        list(predict.predict(model("table"), lines, batch_size=4))


DOCUMENT = [WORDS[start : start + 5] for start in range(0, 30, 5)]


def test_a_document_is_answered_as_the_same_sentences_of_a_file_are(tmp_path):
    ours = inference.load_finetuned(finetuned_workdir.made("conll", context="document"))
    blocks = ["\n".join(f"{word} O" for word in words) for words in DOCUMENT]
    path = tmp_path / "dev.conll"
    halves = ["\n\n".join(blocks[:4]), "\n\n".join(blocks[4:])]
    path.write_text("".join(f"-DOCSTART- O\n\n{half}\n\n" for half in halves))
    options = ours.options.copy_and_resolve_references()
    options.eval_file = str(path)
    of_file = ours.kind.reader(options, ours.vocabulary).features("dev")
    lines = [{"sentences": DOCUMENT[:4]}, {"sentences": DOCUMENT[4:]}]
    kind = ours.kind.reader(ours.options, ours.vocabulary)
    examples = [kind.example(line, f"line {n}") for n, line in enumerate(lines)]
    of_lines = kind.rows(examples)
    for name in ("input_ids", "segment_ids"):
        assert [row.tolist() for row in of_lines.tokens[name]] == [
            row.tolist() for row in of_file.tokens[name]
        ]
    answers = list(predict.predict(ours, lines, batch_size=4))
    counts = [[len(it["tags"]) for it in answer["sentences"]] for answer in answers]
    assert counts == [[5, 5, 5, 5], [5, 5]]
    alone = [a for words in DOCUMENT for a in predict.predict(ours, [{"words": words}])]
    together = [it for answer in answers for it in answer["sentences"]]
    assert [it["tags"] for it in alone] != [it["tags"] for it in together]  # the context counts


def test_the_sentences_of_a_tagger_of_sentences_are_read_one_by_one(model):
    (answer,) = predict.predict(model("conll"), [{"sentences": DOCUMENT}], batch_size=4)
    alone = list(predict.predict(model("conll"), [{"words": words} for words in DOCUMENT]))
    for sentence in alone:
        del sentence["unknown_rate"]
    assert_same(answer["sentences"], alone)
    with pytest.raises(ValueError, match=r"'sentences\[1\]' is 'w1'; it must be a list of texts"):
        list(predict.predict(model("conll"), [{"sentences": [["w"], "w1"]}]))


def test_tags_come_out_in_the_scheme_that_the_workdir_tells():
    line, answers = {"words": WORDS[:30]}, {}
    for scheme in tag_schemes.SCHEMES:
        workdir = finetuned_workdir.made("conll", tag_scheme=scheme)
        (answers[scheme],) = predict.predict(inference.load_finetuned(workdir), [line])
    learnt = answers["iob2"]
    for scheme, answer in answers.items():
        assert answer["entities"] == learnt["entities"]
        if scheme != "iob2":  # The learnt scheme is not converted.
            assert answer["tags"] == list(tag_schemes.convert(learnt["tags"], scheme))
    assert len({tuple(answer["tags"]) for answer in answers.values()}) == len(answers)


def test_a_parent_of_several_trainings_names_them_and_the_best(tmp_path):
    for seed in (0, 1, 10):
        (tmp_path / f"seed_{seed}").symlink_to(finetuned_workdir.made("table"))
    said = "no checkpoint itself, but 3 trainings: seed_0, seed_1, seed_10; .*seed_0$"
    for load in (inference.load, inference.load_finetuned):
        with pytest.raises(FileNotFoundError, match=said):
            load(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps({"best": {"name": "seed_10"}}))
    with pytest.raises(FileNotFoundError, match="--checkpoint=.*seed_10$"):
        inference.load_finetuned(tmp_path)
