"""Claims about the tokens that count in the score of a text, by a scorer of plain loops."""

import dataclasses
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import evaluate, inference
from bertjax.data import minimal_pairs, sentence_rows
from bertjax.data.minimal_pairs import Continuation
from bertjax.inference import likelihood
from bertjax.models import parameters
from bertjax.tasks import next_token, pretraining
from bertjax.tokenization import tokenizer
from tests import small_byte_bpe, small_modules, small_records
from tests.conftest import TINY

pytestmark = pytest.mark.usefixtures("quick_runs")
LENGTH = 32
SIZES = dataclasses.replace(
    TINY, vocab_size=320, num_hidden_layers=1, max_position_embeddings=LENGTH
)
TASKS = {
    "masked": pretraining.Pretraining(SIZES, pair_loss="none"),
    "left to right": next_token.NextToken(dataclasses.replace(SIZES, left_to_right=True)),
}
PIECES = ["##a", "##b", "##c"]


def trained(task, vocabulary):
    graphdef, params = parameters.split(small_modules.made(task.init))
    shape = {"max_length": LENGTH, "mesh": inference.all_devices()}
    return inference.TrainedModel(graphdef, params, vocabulary, **shape, task=task)


@pytest.fixture(scope="module", params=TASKS)
def model(request):
    entries = [*small_records.SPECIALS, *small_records.WORDS, *PIECES]
    return trained(TASKS[request.param], tokenizer.WordPieceTokenizer(entries))


@pytest.fixture(scope="module")
def sum_of(model):
    """The scorer: the sum of log-probabilities of the tokens of a continuation, in plain loops."""
    module, known = model.module(), model.vocabulary
    hides = "mlm_head" in model.params
    shift = int(not hides)  # the place before is read

    @jax.jit
    def all_logits(ids, mask):
        batch = {"input_ids": ids, "input_mask": mask, "segment_ids": ids * 0}
        hidden = module.encoder(batch)
        if shift:
            return module.next_logits(hidden)
        return module.mlm_logits(hidden, jnp.arange(LENGTH)[None])

    def logits_of(ids):
        padded = jnp.asarray([[*ids, *[known.pad_id] * (LENGTH - len(ids))]], jnp.int32)
        mask = (jnp.arange(LENGTH) < len(ids)).astype(jnp.int32)[None]
        return np.asarray(all_logits(padded, mask), np.float64)[0]

    def scored(context, text, masking="token"):
        ids, starts, ends = known.encode_with_offsets(context + text)
        tokens = [known.cls_id, *ids, known.sep_id]
        spans = [(0, 0), *zip(starts, ends, strict=True), (0, 0)]
        total = 0.0
        for place, (_, end) in enumerate(spans):
            if end <= len(context):
                continue
            hidden = [*tokens[:place], known.mask_id, *tokens[place + 1 :]]
            if masking == "word_to_right":
                rest = range(place + 1, len(tokens))
                for other in itertools.takewhile(lambda at: known.continues_word[tokens[at]], rest):
                    hidden[other] = known.mask_id
            logits = logits_of(hidden if hides else tokens)[place - shift]
            total += logits[tokens[place]] - np.log(np.exp(logits - logits.max()).sum())
            total -= logits.max()
        return total

    return scored


# Context, continuation, its tokens.
CASES = [
    ("", "w1 w2ab w3", ["w1", "w2", "##a", "##b", "w3"]),
    ("w1 w2", " w3 w4", ["w3", "w4"]),
    ("w1 w2 ", "w3 w4", ["w3", "w4"]),
    ("w1 w2", "ab w3", ["##a", "##b", "w3"]),  # it goes on in the middle of a word
    ("w1 w", "2 w3", ["w2", "w3"]),  # in the middle of a token, which counts
    ("w5 w6ab w7 w8 w9 w10", " w11", ["w11"]),
    ("w1", "", []),
]


def test_the_tokens_of_a_continuation_count_and_no_special_ones(model, sum_of):
    texts = [Continuation(context, text) for context, text, _ in CASES]
    wanted = [tokens for *_, tokens in CASES]
    found = {}
    for masking in sentence_rows.MASKINGS if "mlm_head" in model.params else ["token"]:
        found[masking] = list(likelihood.scores(model, texts, masking=masking, batch_size=8))
        for text, tokens, score in zip(texts, wanted, found[masking], strict=True):
            assert score.num_tokens == len(tokens)
            sums = pytest.approx(sum_of(*text, masking), rel=1e-5, abs=1e-5)
            assert score.log_likelihood == sums, text
    # The rest of a word is hidden with its pieces, where there are some.
    if len(found) > 1:
        for tokens, by_tokens, by_words in zip(wanted, *found.values(), strict=True):
            assert (by_tokens != by_words) == ("##b" in tokens)
    (alone,) = likelihood.scores(model, [CASES[0][1]], batch_size=8)
    assert alone == found["token"][0]


@pytest.mark.parametrize("add_prefix_space", [False, True])
def test_the_space_before_a_continuation_belongs_to_it(add_prefix_space):
    known = small_byte_bpe.vocabulary(add_prefix_space=add_prefix_space)
    model = trained(TASKS["left to right"], known)
    texts = [Continuation("the runner", " ran home"), Continuation("the runner ", "ran home")]
    behind, before = likelihood.scores(model, [*texts], batch_size=8)
    assert behind == before
    assert behind.num_tokens == len(known.encode("the runner ran home")) - len(
        known.encode("the runner")
    )


ENTITIES = [("w1", 0), ("w2 w3", 1), ("w4", 1), ("w5", 2), ("w6", 2), ("w7", 3), ("w8", 4)]
FILES = {
    "sentences": {
        "short.jsonl": [
            {"sentence_good": "w1 w2", "sentence_bad": "w2 w1ab", "linguistics_term": "order"},
            {"sentence_good": "w1 w2ab w3", "sentence_bad": "w4"},
        ],
        "named.jsonl": [{"sentence_good": "w9", "sentence_bad": "w9", "UID": "same"}],
    },
    "ewok": {
        f"{domain}.jsonl": [
            {"Domain": domain, "Context1": first, "Context2": "w5", "Target1": one, "Target2": two}
            for first, one, two in pairs
        ]
        for domain, pairs in {
            "social": [("w1 w2", "w3 w4", "w5 w6"), ("w1", "w2a w3", "w2b w3")],
            "spatial": [("w7 w8", "w9", "w10 w11")],
        }.items()
    },
    "comps": {
        f"comps_{name}.jsonl": [
            {"prefix_acceptable": a, "prefix_unacceptable": b, "property_phrase": "w1 w2 w3"}
            for a, b in pairs
        ]
        for name, pairs in {"base": [("w4", "w5"), ("w6", "w7 w8")], "wugs": [("w9", "w8")]}.items()
    },
    "entity_tracking": {
        f"{name}.jsonl": [
            {"input_prefix": f"w{number} w9 {context} w8 ", "options": ["w1", "w2 w3", "w4"],
             "numops": operations}
            for context, operations in ENTITIES[: 2 * number + 3]
        ]
        for number, name in enumerate(("regular", "ambiref", "move_contents"))
    },
}  # fmt: skip
# Of a row: its texts, and the groups in which its mean is taken, from within.
RULES = {
    "sentences": lambda row, file: (
        [("", row["sentence_good"]), ("", row["sentence_bad"])],
        [row.get("UID", file)],
    ),
    "ewok": lambda row, file: (
        [(row["Context1"], " " + row["Target1"]), (row["Context1"], " " + row["Target2"])],
        [row["Domain"]],
    ),
    "comps": lambda row, file: (
        [(row[name] + " ", row["property_phrase"])
         for name in ("prefix_acceptable", "prefix_unacceptable")],
        [file],
    ),
    "entity_tracking": lambda row, file: (
        [(row["input_prefix"], option) for option in row["options"]],
        [(file, row["numops"]), file],
    ),
}  # fmt: skip


def written(directory, form):
    for name, rows in FILES[form].items():
        (directory / name).write_text("\n".join(map(json.dumps, rows)))
    (directory / "README").write_text("no comparisons")
    return directory


@pytest.mark.parametrize("form", FILES)
def test_a_file_is_scored_as_its_fields_ask(form, model, sum_of, tmp_path, monkeypatch):
    monkeypatch.setattr(inference, "load", lambda workdir, **options: model)
    found = evaluate.evaluate_pairs("nowhere", written(tmp_path, form), batch_size=8)
    right, ties, groups = {}, 0, {}
    for file, rows in FILES[form].items():
        for row in rows:
            texts, names = RULES[form](row, file.removesuffix(".jsonl"))
            first, *others = [sum_of(*text) for text in texts]
            ties += first == max(others)
            right.setdefault(names[0], []).append(first >= max(others))
            groups.setdefault(names[-1], set()).add(names[0])
    by_group = [np.mean([np.mean(right[it]) for it in inner]) for inner in groups.values()]
    assert found["accuracy"] == pytest.approx(np.mean(by_group))
    assert (found["pairs"], found["ties"]) == (sum(map(len, FILES[form].values())), ties)
    assert found["chance"] == pytest.approx(1 / (3 if form == "entity_tracking" else 2))
    assert len(found["paradigms"]) == len(right)


def test_a_file_may_be_a_table_and_mixed_files_are_refused(tmp_path):
    header = "Domain,Context1,Context2,Target1,Target2,ContextDiff\n"
    (tmp_path / "ewok.csv").write_text(header + '"social","a, b",c,d,e,x\n')
    texts = (Continuation("a, b", " d"), Continuation("a, b", " e"))
    found = minimal_pairs.read(tmp_path / "ewok.csv")
    assert found == ("ewok", [minimal_pairs.Comparison(texts, "social")])
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}')
    with pytest.raises(ValueError, match=r"pairs.jsonl:1: it has no Context1 and no Context2"):
        minimal_pairs.read(tmp_path)
    one = {"input_prefix": "a", "options": ["b"], "numops": 1}
    (tmp_path / "one.jsonl").write_text(json.dumps(one))
    with pytest.raises(ValueError, match=r"options is \['b'\]; it must be a list of at least two"):
        minimal_pairs.read(tmp_path / "one.jsonl")
