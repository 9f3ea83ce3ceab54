"""Claims about how likely a text is held to be: every token masked once, whatever stands around."""

import dataclasses
import json
import lzma

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import evaluate, inference
from bertjax.convert import workdir as workdirs
from bertjax.data import minimal_pairs, sentence_rows
from bertjax.inference import likelihood
from bertjax.tokenization import tokenizer
from tests import programs, small_modules, small_records
from tests.convert import weights

PIECES = ["##a", "##b", "##c"]
TEXTS = [
    "w1 w2ab w3",
    "",
    "w4",
    "w5abc w6 w7a w8 w9 w10 w11 w12",
    " ".join(f"w{n}" for n in range(34)),
]


@pytest.fixture(scope="module")
def one_device():
    devices = jax.local_devices()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda: devices[:1])
        yield lambda count: patch.setattr(jax, "devices", lambda: devices[:count])


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, one_device):
    """A pretrained model of random weights, whose words may have pieces."""
    directory = tmp_path_factory.mktemp("likelihood")
    entries = [*small_records.SPECIALS, *small_records.WORDS, *PIECES]
    vocabulary = tokenizer.WordPieceTokenizer(entries)
    workdirs.write(weights.make(vocabulary=vocabulary), directory)
    return directory


@pytest.fixture(scope="module")
def model(workdir):
    return inference.load(workdir)


def test_a_piece_at_the_start_of_a_text_begins_a_word():
    continues = np.array([True, True, False, False, True])
    assert sentence_rows.MASKINGS["word_to_right"](continues).tolist() == [2, 2, 3, 5, 5]
    assert sentence_rows.MASKINGS["word_to_right"](continues[:0]).tolist() == []


def test_a_score_does_not_depend_on_what_stands_around_nor_on_devices(
    model, workdir, monkeypatch, one_device
):
    texts = TEXTS[:4]  # of one width
    alone = [score for text in texts for score in likelihood.scores(model, [text], batch_size=8)]
    monkeypatch.setattr(likelihood, "TEXTS_READ", 3)
    together = list(likelihood.scores(model, texts * 2, batch_size=8))
    assert [it.num_tokens for it in together] == [it.num_tokens for it in alone * 2]
    # The rows of a product may be summed in another order, by their place.
    expected = [it.log_likelihood for it in alone * 2]
    assert [it.log_likelihood for it in together] == pytest.approx(expected, rel=1e-6)
    one_device(4)
    spread = likelihood.scores(inference.load(workdir), texts, batch_size=6)
    one_device(1)
    for one, other in zip(spread, alone, strict=True):
        assert one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-6)


def test_texts_are_read_a_part_at_a_time(model, monkeypatch):
    monkeypatch.setattr(likelihood, "TEXTS_READ", 2)
    read = []
    texts = (read.append(text) or text for text in TEXTS)
    next(likelihood.scores(model, texts, batch_size=8))
    assert read == TEXTS[:2]


def test_lines_are_answered_in_order_and_one_that_is_too_long_with_its_error(workdir, model):
    too_long = " ".join(["w1"] * 39)
    done = programs.run("bertjax.score", f"--checkpoint={workdir}", lines=("w1 w2", too_long, ""))
    first, second, third = done.lines
    (wanted,) = likelihood.scores(model, ["w1 w2"])
    assert first == {"score": wanted.log_likelihood, "tokens": 2, "unknown_rate": 0.0}
    assert second["error"].startswith("line 2: it has 41 tokens")
    assert "at most 40" in second["error"]
    assert third == {"score": 0.0, "tokens": 0, "unknown_rate": 0.0}
    assert done.error.startswith("bertjax: 1 of 3 lines could not be scored")


def test_a_hybrid_model_reads_masked_rows_one_place_to_the_left_or_from_the_left(tmp_path):
    made = dataclasses.replace(weights.make("masked_lm", norm_scale=1.0), is_shifted=True)
    workdirs.write(made, tmp_path / "hybrid")
    model = inference.load(tmp_path / "hybrid")
    text = "w1 w2 w3 w5"
    ids = np.asarray(model.vocabulary.encode(text))
    rows = np.stack([np.concatenate([[2], ids, [3]])] * (len(ids) + 1)).astype(np.int32)
    for place in range(len(ids)):
        rows[place, place + 1] = model.vocabulary.mask_id
    batch = {"input_ids": jnp.asarray(rows), "input_mask": jnp.ones_like(rows)}
    every = jnp.tile(jnp.arange(rows.shape[1]), (len(rows), 1))

    def both(module, batch):
        masked = module.mlm_logits(module.encoder(batch), every)
        from_left = module.next_logits(module.encoder(batch, left_to_right=True))[-1]
        return jax.nn.log_softmax(masked), jax.nn.log_softmax(from_left)

    logits, from_left = small_modules.run(both, model.module(), batch)
    masked = sum(logits[place, place + 1, token] for place, token in enumerate(ids))
    causal = from_left[np.arange(len(ids)), ids].sum()
    found = {
        name: next(iter(likelihood.scores(model, [text], reading=name))).log_likelihood
        for name in ("", *likelihood.READINGS)
    }
    wanted = {"": masked, "masked": masked, "causal": causal, "fused": masked + causal}
    for name, score in wanted.items():
        np.testing.assert_allclose(found[name], score, rtol=1e-5)
    with pytest.raises(ValueError, match="masking is 'word_to_right', but the model reads a text"):
        next(likelihood.scores(model, [text], reading="causal", masking="word_to_right"))


def test_what_cannot_be_scored_is_told(model):
    with pytest.raises(ValueError, match="reading is 'causal', but the model reads texts in one w"):
        next(likelihood.scores(model, ["w1"], reading="causal"))
    with pytest.raises(ValueError, match="masking is 'words'; known are token, word_to_right"):
        next(likelihood.scores(model, ["w1"], masking="words"))
    with pytest.raises(ValueError, match="no masked-token head"):
        next(likelihood.scores(dataclasses.replace(model, task=None), ["w1"]))
    damaged = jax.tree.map(lambda leaf: leaf * np.nan, model.params)
    with pytest.raises(ValueError, match="texts from 1 to 1 hold NaN"):
        next(likelihood.scores(dataclasses.replace(model, params=damaged), ["w1"]))


PAIRS = [
    {"sentence_good": good, "sentence_bad": bad, "UID": uid, "linguistics_term": term}
    for good, bad, uid, term in [
        ("w1", "w1 w2 w3 w4", "short", "length"),  # fewer tokens are likelier
        ("w2", "w1 w2 w3 w5", "short", "length"),
        ("w1 w2 w3", "w5", "long", "length"),
        ("w7", "w7", "same", "nothing"),
    ]
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))
    return path


def test_pairs_are_won_by_the_likelier_sentence_and_every_paradigm_counts_the_same(
    workdir, pairs, tmp_path
):
    found = evaluate.evaluate_pairs(workdir, pairs, batch_size=8)
    assert found["paradigms"] == {"long": 0.0, "same": 1.0, "short": 1.0}  # a tie is right
    assert found["phenomena"] == {"length": 0.5, "nothing": 1.0}
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert (found["pairs"], found["ties"], found["chance"]) == (4, 1, 0.5)
    packed = tmp_path / "pairs.jsonl.xz"
    packed.write_bytes(lzma.compress(pairs.read_bytes()))
    where = (f"--checkpoint={workdir}", f"--pairs={packed}")
    assert programs.succeed("bertjax.evaluate", *where, "--json").lines == [found]
    shown = programs.succeed("bertjax.evaluate", *where).output.decode().splitlines()
    assert [line.split() for line in shown][:5] == [
        ["pairs", "4"], ["accuracy", "0.6667"], ["ties", "1"], ["chance", "0.5000"], ["paradigms:"]
    ]  # fmt: skip


def test_a_file_that_holds_no_pairs_is_named_with_the_line(tmp_path, pairs, workdir):
    path = tmp_path / "pairs.jsonl"
    for content, fault in (
        ("", " holds no pairs"),
        ("[1]", ":1: it is a JSON list of 1 elements; each line must be an object"),
        ('{"sentence_good": "a"}', ":1: it has sentence_good; it must have the fields of one of"),
        (
            json.dumps(PAIRS[0]) + '\n{"sentence_good": "a"}',
            ":2: it has no sentence_bad; it has sentence_good",
        ),
        ('\n{"sentence_good": "a", "sentence_bad": 3}', ":2: sentence_bad is 3; it must be a text"),
        ("{", ":1: it is not JSON"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"pairs\.jsonl{fault}"):
            minimal_pairs.read(path)
    packed = tmp_path / "pairs.jsonl.xz"
    packed.write_bytes(lzma.compress(pairs.read_bytes())[:-9])
    with pytest.raises(ValueError, match=r"pairs\.jsonl\.xz is damaged"):
        minimal_pairs.read(packed)
    with pytest.raises(FileNotFoundError, match="nowhere.jsonl does not exist"):
        minimal_pairs.read(tmp_path / "nowhere.jsonl")
    done = programs.run("bertjax.evaluate", f"--checkpoint={workdir}")
    assert "--data" in done.error and "--pairs" in done.error
    options = (f"--checkpoint={workdir}", "--data=heldout", "--masking=token")
    assert "--masking goes with --pairs" in programs.run("bertjax.evaluate", *options).error


def test_pairs_that_are_the_same_tokens_are_told(workdir, tmp_path, caplog):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"sentence_good": "w1 unseen", "sentence_bad": "w1 unheard"}')
    assert evaluate.evaluate_pairs(workdir, path, batch_size=8)["accuracy"] == 1.0
    assert "1 of 1 pairs are ties" in caplog.text and "[UNK]" in caplog.text
    # And a sentence that is too long ends it.
    long = " ".join(["w1"] * 39)
    path.write_text(json.dumps({"sentence_good": "w1", "sentence_bad": long}))
    with pytest.raises(ValueError, match="'w1 w1 .* cannot be scored: it has 41 tokens"):
        evaluate.evaluate_pairs(workdir, path, batch_size=8)
