"""Claims about using a trained checkpoint: scoring it, filling masks, taking features."""

import collections
import dataclasses
import io
import json
import re
import shutil
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import encode, evaluate, fill_mask, inference
from bertjax.convert import __main__ as convert
from bertjax.data import contents, records
from bertjax.devices import sharding
from bertjax.inference import encoding, rows
from bertjax.jobs import pretraining, pretraining_data
from bertjax.models import parameters
from bertjax.tasks import base as tasks_base
from bertjax.tasks import metrics
from bertjax.tokenization import tokenizer
from bertjax.training import evaluation, warm_start
from bertjax.workdirs import checkpoint, reader
from configs import smoke
from tests import finetuned_workdir, programs, small_records, small_runs

MAX_LENGTH = 40
HELD_OUT = (13, 10)
WEIRD_LINES = ("w1 w2 w3", "", "w4\x0cw5\u2028w6", "w7 w8 w9 w10 w11")


def use_devices(monkeypatch, count):
    devices = jax.local_devices()[:count]
    monkeypatch.setattr(jax, "devices", lambda: devices)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Four layers of 32 over records: random weights, so large that some tokens are preferred."""
    root = tmp_path_factory.mktemp("inference")
    small_records.write(root / "train")
    small_records.write(root / "heldout", counts=HELD_OUT, seed=1)
    config = smoke.get_config()
    config.data.source = "records"
    config.data.train_dir = str(root / "train")
    config.model.update(vocab_size=0, hidden_size=32, num_hidden_layers=4, intermediate_size=64)
    config.model.max_position_embeddings = MAX_LENGTH
    config.phases.phase1.max_seq_length = 16
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_devices(monkeypatch, 1)
        small_runs.untrained(config, root / "run")
    return root / "run"


@pytest.fixture(scope="module")
def held_out(workdir):
    return workdir.parent / "heldout"


@pytest.fixture(scope="module")
def model(workdir):
    return inference.load(workdir)


def all_at_once(directory):
    """Every example of a record directory in one batch, read without `streams`."""
    tf = records.import_tensorflow()
    record_set = records.open(directory)
    serialized = list(tf.data.TFRecordDataset(record_set.shard_paths).as_numpy_iterator())
    parsed = records.parse_batch(serialized, record_set.manifest)
    batch = {name: np.asarray(values) for name, values in parsed.items()}
    return batch | {"example_weights": np.ones(len(serialized), np.float32)}


@pytest.fixture(scope="module")
def expected_scores(workdir, held_out):
    params, meta, _ = checkpoint.load_params(workdir)
    task = pretraining.pretraining_task(reader.config_of(meta, 1))
    graphdef, _ = tasks_base.abstract_model(task)
    batch = all_at_once(held_out)
    means = jax.jit(lambda p, b: task.loss(parameters.merge(graphdef, p), b, key=None))(
        params, batch
    )
    assert float(means["nsp_loss"].weight) == sum(HELD_OUT)
    scores = {name: mean.value() for name, mean in means.items()}
    return scores | {"mlm_perplexity": np.exp(scores["mlm_loss"])}


SLOWLY = [pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 64), (8, 16))]


@pytest.mark.parametrize(("devices", "batch_size"), [(1, 5), (8, 3), *SLOWLY])
def test_every_example_counts_once_in_any_batch_size_on_any_number_of_devices(
    workdir, held_out, expected_scores, monkeypatch, devices, batch_size
):
    use_devices(monkeypatch, devices)
    scores = evaluate.evaluate_checkpoint(str(workdir), str(held_out), batch_size=batch_size)
    assert scores.pop("step") == 0
    assert scores.pop("examples") == sum(HELD_OUT)
    assert scores == pytest.approx(expected_scores, rel=1e-5)


def test_records_that_count_bytes_have_bits_per_byte(workdir, held_out, tmp_path, monkeypatch):
    use_devices(monkeypatch, 1)
    data = tmp_path / "data"
    shutil.copytree(held_out, data)
    manifest = records.Manifest.load(data)
    figures = {**manifest.statistics, "tokens": 300, "bytes": 1600}
    dataclasses.replace(manifest, statistics=figures).save(data)
    scores = evaluate.evaluate_checkpoint(str(workdir), str(data), batch_size=5)
    bits_of_a_token = np.log2(np.exp(np.float64(scores["mlm_loss"])))
    assert scores["bits_per_byte"] == pytest.approx(bits_of_a_token * 300 / 1600, rel=1e-12)


@pytest.fixture(scope="module")
def with_contents(workdir):
    """The same run, with the contents of its training data."""
    copy = workdir.parent / "with_contents"
    copy.mkdir()
    for path in workdir.iterdir():
        (copy / path.name).symlink_to(path)
    counts = np.zeros(small_records.vocabulary().vocab_size, np.int64)
    counts[5:60] = np.arange(55) ** 2
    documents = contents.Documents(np.arange(90, dtype=np.uint64))
    contents.RecordSummary(counts, documents).save(copy / "training_data")
    return copy, counts


@pytest.mark.parametrize("has_contents", [False, True])
def test_held_out_tokens_are_scored_by_the_frequencies_of_the_training_text(
    with_contents, held_out, monkeypatch, tmp_path, has_contents, caplog
):
    run, trained = with_contents
    use_devices(monkeypatch, 1)
    batch = all_at_once(held_out)
    asked = batch["masked_lm_ids"][batch["masked_lm_weights"] > 0]
    data = tmp_path / "data"
    data.mkdir()
    for path in held_out.iterdir():
        (data / path.name).symlink_to(path)
    if has_contents:
        counts = np.bincount(asked, minlength=len(trained))
        documents = contents.Documents(np.arange(86, 96, dtype=np.uint64))
        contents.RecordSummary(counts, documents).save(data)
    scores = evaluate.evaluate_checkpoint(str(run), str(data), batch_size=5, chance=True)
    # Entries 5 and 60 to 94, which are unseen, share 54 of all tokens with 54 that are seen.
    unseen = len(trained) - 54
    shares = np.where(trained > 0, trained, 54 / unseen) / (trained.sum() + 54)
    assert scores["unigram_loss"] == pytest.approx(-np.log(shares[asked]).mean())
    assert scores["most_frequent_token_accuracy"] == pytest.approx((asked == 59).mean())
    assert "unigram_entropy" not in scores
    assert ("40.0% of the documents" in caplog.text) == has_contents
    assert "masked tokens to score" in caplog.text


def test_records_that_a_model_was_trained_on_are_called_so(workdir, monkeypatch, caplog):
    use_devices(monkeypatch, 1)
    data = workdir.parent / "train"
    scores = evaluate.evaluate_checkpoint(str(workdir), str(data), batch_size=5, chance=True)
    assert "holds the very records that it was trained on" in caplog.text
    assert "frequencies of the text" in caplog.text
    batch = all_at_once(data)
    counts = collections.Counter(batch["masked_lm_ids"][batch["masked_lm_weights"] > 0].tolist())
    shares = np.array(list(counts.values())) / sum(counts.values())
    assert scores["unigram_entropy"] == pytest.approx(-(shares * np.log(shares)).sum())
    assert scores["most_frequent_token_accuracy"] == pytest.approx(shares.max())


@pytest.mark.slow
def test_untrained_positions_are_warned_of_wherever_they_are_used(
    workdir, tmp_path, monkeypatch, caplog
):
    # Trained on 16 tokens, with places for 40.
    use_devices(monkeypatch, 1)

    def warned():
        texts = [text for text in caplog.messages if "were never trained" in text]
        caplog.clear()
        return texts

    model = inference.load(workdir)
    rows._warn_of_long_texts.cache_clear()
    inference.single_segment_batch([[5] * 14], model)
    assert not warned()
    for _ in range(2):
        inference.single_segment_batch([[5] * 15], model)
    [warning] = warned()
    assert "positions 16 to 39 were never trained" in warning

    longer = small_records.write(tmp_path / "longer", max_seq_length=24, counts=(9,))
    evaluate.evaluate_checkpoint(str(workdir), str(longer), batch_size=16)
    [warning] = warned()
    assert "positions 16 to 23" in warning and str(longer) in warning

    convert.convert(workdir, tmp_path / "exported")
    [warning] = warned()
    assert "exporting" in warning and "positions 16 to 39" in warning

    config = smoke.get_config()
    config.init_from, config.model.dtype = str(workdir), "float32"
    for length, count in ((16, 0), (24, 1)):
        config.phases.phase1.max_seq_length = length
        job = pretraining.abstract(config)
        monkeypatch.setattr(warm_start, "read", lambda path, target: None)
        warm_start.of_job(job, {})
        assert len(warned()) == count


def test_max_batches_limits_what_is_read(held_out):
    record_set = records.open(held_out)
    config = smoke.get_config()
    mesh = sharding.make_mesh(jax.devices()[:1], data=1)

    def count_rows(_, batch):
        return {"rows": metrics.Mean(batch["example_weights"].sum(), np.float32(1))}, {}

    for max_batches, num_rows in ((0, 23), (2, 16), (9, 23)):
        scores, _ = evaluation.evaluate(
            count_rows,
            {},
            pretraining_data.record_batches(record_set, config.pretraining, batch_size=8),
            mesh=mesh,
            global_batch_size=8,
            max_batches=max_batches,
        )
        assert scores["rows"] == pytest.approx(num_rows / -(-num_rows // 8))


def with_pairs(pair_objective, source, target):
    shutil.copytree(source, target)
    path = target / records.MANIFEST_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pair_objective": pair_objective}))
    return str(target)


def test_records_without_pairs_are_scored_by_their_tokens_alone(
    workdir, held_out, expected_scores, monkeypatch, tmp_path
):
    use_devices(monkeypatch, 1)
    plain = with_pairs("none", held_out, tmp_path / "plain")
    scores = evaluate.evaluate_checkpoint(str(workdir), plain, batch_size=5)
    of_tokens = {name: it for name, it in expected_scores.items() if name.startswith("mlm_")}
    assert of_tokens.keys() < expected_scores.keys()
    counts = {"step": 0, "examples": sum(HELD_OUT)}
    assert scores == pytest.approx(of_tokens | counts, rel=1e-5)
    ordered = with_pairs("sop", held_out, tmp_path / "ordered")
    with pytest.raises(ValueError, match="pair_objective is 'sop', and .* is 'nsp'"):
        evaluate.evaluate_checkpoint(str(workdir), ordered, batch_size=5)


def test_records_of_another_vocabulary_or_too_long_are_not_evaluated(workdir, tmp_path):
    other = small_records.write(tmp_path / "other", words=[f"v{n}" for n in range(90)])
    with pytest.raises(ValueError, match="their vocabulary .* is not the one of"):
        evaluate.evaluate_checkpoint(str(workdir), str(other), batch_size=8)
    longer = small_records.write(tmp_path / "longer", max_seq_length=48, counts=(16,))
    with pytest.raises(ValueError, match="48"):
        evaluate.evaluate_checkpoint(str(workdir), str(longer), batch_size=16)


def test_candidates_are_the_likeliest_tokens_in_order(model):
    (candidates,) = fill_mask.fill_mask(model, "w1 w2 [MASK] w3")
    (everything,) = fill_mask.fill_mask(model, "w1 w2 [MASK] w3", num_candidates=95)
    probabilities = [candidate["probability"] for candidate in everything]
    assert len(candidates) == 5 and candidates == everything[:5]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert {candidate["token"] for candidate in everything} == set(model.vocabulary.vocabulary)
    # Outputs without a token are not candidates.
    few = tokenizer.WordPieceTokenizer(model.vocabulary.vocabulary[:50])
    chosen = dataclasses.replace(model, own_vocabulary=few)
    (candidates,) = fill_mask.fill_mask(chosen, "w1 w2 [MASK] w3", num_candidates=95)
    assert candidates == [each for each in everything if each["token"] in few.vocabulary]


@pytest.mark.slow
def test_candidates_are_those_of_the_masked_position(model):
    text = "w1 [MASK] w2 w3 [MASK]"
    masks = fill_mask.fill_mask(model, text, num_candidates=95)
    vocabulary = model.vocabulary
    ids = np.array([[2, vocabulary.encode("w1")[0], 4, *vocabulary.encode("w2 w3"), 4, 3]])
    module = model.module()

    @jax.jit
    def logits_of(ids):
        hidden = module.encoder({"input_ids": ids, "input_mask": jnp.ones_like(ids)})
        return module.mlm_logits(hidden, jnp.array([[2, 5]]))

    logits = logits_of(jnp.asarray(ids, jnp.int32))
    expected = np.asarray(jax.nn.softmax(logits[0], axis=-1))
    assert len(masks) == 2
    for row, candidates in zip(expected, masks, strict=True):
        for candidate in candidates:
            token_id = vocabulary.vocabulary.index(candidate["token"])
            assert candidate["probability"] == pytest.approx(float(row[token_id]), rel=1e-4)


def test_the_filled_text_holds_the_best_token_of_each_mask():
    masks = [[{"token": "[MASK]"}, {"token": "b"}], [{"token": "c"}]]
    assert fill_mask.filled(["x ", " y ", "."], masks) == "x **[MASK]** y **c**."


def test_a_text_without_a_mask_and_one_that_is_too_long_by_a_token_are_errors(model):
    with pytest.raises(ValueError, match=r"there is no \[MASK\] in 'w1 w2'"):
        fill_mask.fill_mask(model, "w1 w2")
    words = " ".join(["w1"] * (MAX_LENGTH - 3))
    assert len(fill_mask.fill_mask(model, f"[MASK] {words}")) == 1
    with pytest.raises(ValueError, match="a text has 41 tokens .* at most 40"):
        fill_mask.fill_mask(model, f"[MASK] w1 {words}")


def test_a_synthetic_run_has_no_vocabulary_to_read_text_with(workdir, tmp_path):
    (tmp_path / checkpoint.DIRECTORY).symlink_to(workdir / checkpoint.DIRECTORY)
    with pytest.raises(FileNotFoundError, match="a run on synthetic data, or"):
        inference.load(tmp_path)


TEXTS = ["w1 w2 w3", " ".join(f"w{n}" for n in range(30)), "", "w5", "w7 w8", "w3 w2 w1"]


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_features_do_not_depend_on_the_batch_nor_on_padding(model, pooling):
    """How each pooling leaves padding out is shown by test_classification."""
    together = encode.encode(model, TEXTS, pooling=pooling, batch_size=4)
    alone = [encode.encode(model, [text], pooling=pooling) for text in TEXTS]
    expected = np.concatenate([one["features"] for one in alone])
    np.testing.assert_allclose(together["features"], expected, atol=1e-5)
    lengths = [1 + len(text.split()) + 1 for text in TEXTS]
    assert together["lengths"].tolist() == lengths
    if pooling != "none":  # a wrong order would be seen
        differences = np.abs(expected[:, None] - expected[None]).max(axis=-1)
        assert (differences + np.eye(len(expected)) > 1e-3).all()


def test_none_pooling_gives_each_token_a_row_and_the_others_pool_these_rows(model):
    tokens = encode.encode(model, TEXTS, pooling="none")
    cls, mean = (encode.encode(model, TEXTS, pooling=name)["features"] for name in ("cls", "mean"))
    assert tokens["features"].shape == (tokens["lengths"].sum(), 32)
    assert tokens["features"].dtype == cls.dtype == mean.dtype == np.float32
    assert cls.shape == mean.shape == (len(TEXTS), 32)
    for row, text in enumerate(TEXTS):
        start = tokens["offsets"][row]
        rows = slice(start, start + tokens["lengths"][row])
        assert tokens["input_ids"][rows].tolist() == [2, *model.vocabulary.encode(text), 3]
        np.testing.assert_allclose(cls[row], tokens["features"][start], atol=1e-5)
        np.testing.assert_allclose(mean[row], tokens["features"][rows].mean(axis=0), atol=1e-5)


@pytest.mark.slow
def test_layers_are_those_that_their_names_say(model):
    ids = jnp.array([[2, 6, 7, 3]])
    encoder = model.module().encoder
    states = jax.jit(encoder.hidden_states)({"input_ids": ids, "input_mask": jnp.ones_like(ids)})
    states = [np.asarray(hidden[0]) for hidden in states]
    text = model.vocabulary.decode(ids[0, 1:3].tolist())
    expected = {
        "last": states[4],
        "second_to_last": states[3],
        "last4": np.concatenate(states[1:], axis=-1),
        "sum4": states[1] + states[2] + states[3] + states[4],
        "embeddings": states[0],
        "all": np.concatenate(states, axis=-1),
    }
    assert set(expected) == set(encoding.LAYERS) == set(encoding.LAYERS_NEEDED)
    for layers, state in expected.items():
        features = encode.encode(model, [text], layers=layers, pooling="none")["features"]
        np.testing.assert_allclose(features, state, atol=1e-5)


def test_an_unknown_option_and_a_model_with_too_few_layers_are_refused(model):
    module = model.module()
    module.encoder.uses = module.encoder.uses[:3]
    graphdef, params = parameters.split(module)
    shallow = dataclasses.replace(model, graphdef=graphdef, params=params)
    for wrong, fault in (
        ({"layers": "first"}, "layers is 'first'; known are last, second_to_last"),
        ({"pooling": "median"}, "pooling is 'median'; known are cls, .* none"),
        ({"layer": "last"}, "'layer' is not an option; .* Did you mean layers"),
    ):
        with pytest.raises(ValueError, match=fault):
            encode.encode(model, ["w1"], **wrong)
    for layers in ("last4", "sum4"):
        with pytest.raises(ValueError, match=f"--layers={layers} needs 4 layers; the model has 3"):
            encode.encode(shallow, ["w1"], layers=layers)
    assert encode.encode(shallow, ["w1"], layers="second_to_last")["features"].shape == (1, 32)


class Pipe(io.RawIOBase):
    """Where to write, and no more: as a pipe, it cannot be asked where it is."""

    def __init__(self):
        self.parts = []

    def writable(self):
        return True

    def write(self, part):
        self.parts.append(bytes(part))
        return len(part)


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_what_is_written_in_parts_is_what_is_computed_at_once(model, monkeypatch, pooling):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 4)
    file = Pipe()
    encode.write(model, iter(TEXTS), file, pooling=pooling, batch_size=4)
    written = b"".join(file.parts)
    expected = encode.encode(model, TEXTS, pooling=pooling, batch_size=4)
    with np.load(io.BytesIO(written)) as archive:
        assert list(archive) == list(expected)
        for name, array in expected.items():
            assert archive[name].dtype == array.dtype
            np.testing.assert_array_equal(archive[name], array, strict=True)


@pytest.mark.slow
def test_writing_keeps_no_features_in_memory(model, monkeypatch):
    monkeypatch.setattr(encoding, "BLOCK_SIZE", 32)

    class Nowhere(Pipe):
        def write(self, part):
            return len(part)

    def peak(count):
        texts = (f"w{number % 90} w1 w2 w3" for number in range(count))
        tracemalloc.start()
        encode.write(model, texts, Nowhere(), pooling="none", batch_size=16)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(64)  # compiles
    assert peak(1024) < peak(64) + 200_000  # features of 960 texts more have 960 * 6 * 128 bytes


def test_a_text_that_is_too_long_is_named_before_anything_is_written(model):
    file = io.BytesIO()
    texts = ["w1", " ".join(["w1"] * (MAX_LENGTH - 1)), "w2"]
    with pytest.raises(ValueError, match="text 2 has 41 tokens .* at most 40"):
        encode.write(model, texts, file)
    with pytest.raises(ValueError, match="there are no texts"):
        encode.write(model, [], file)
    assert file.getvalue() == b""


def test_the_programs_write_json_and_npz(model, workdir):
    flags = (f"--checkpoint={workdir}", "--pooling=cls", "--layers=last4")
    done = programs.succeed("bertjax.encode", *flags, lines=WEIRD_LINES)
    expected = encode.encode(model, WEIRD_LINES, pooling="cls", layers="last4")
    with np.load(io.BytesIO(done.output)) as archive:
        assert archive["features"].shape == (4, 4 * 32)
        np.testing.assert_allclose(archive["features"], expected["features"], atol=1e-5)
        np.testing.assert_array_equal(archive["lengths"], expected["lengths"])
    texts = ["w1 [MASK] w2", '"[MASK]" [MASK]']
    flags = (f"--checkpoint={workdir}", "--json", "--num_candidates=2")
    lines = programs.succeed("bertjax.fill_mask", *flags, *texts).lines
    assert [line["text"] for line in lines] == texts
    assert [[len(mask) for mask in line["masks"]] for line in lines] == [[2], [2, 2]]
    (candidates,) = fill_mask.fill_mask(model, texts[0], num_candidates=2)
    assert [c["token"] for c in lines[0]["masks"][0]] == [c["token"] for c in candidates]


def test_unknown_tokens_and_empty_lines_are_counted_and_said_once(workdir, tmp_path, caplog):
    unread, vectors = "w1 漢 字 と w2 で", tmp_path / "vectors"
    lines = ("w1 w2", "", unread, " ")
    objects = tuple(json.dumps({"text": line}) for line in ("w1 w2", unread))
    for program, where, arguments, given, counts, empty in (
        ("fill_mask", workdir, ("--json", f"{unread} [MASK]"), (), "4 of 7", ""),
        ("score", workdir, (), lines, "4 of 8", "2; each has the score 0, of 0 tokens"),
        ("predict", finetuned_workdir.made("table"), (), objects, "4 of 8", ""),
        ("encode", workdir, (), lines, "4 of 8", "2; each keeps its row"),
        ("encode", workdir, (f"--output={vectors}",), lines * 2, "8 of 16", "4; each keeps its"),
    ):
        caplog.clear()
        checkpoint_flag = f"--checkpoint={where}"
        done = programs.succeed(f"bertjax.{program}", checkpoint_flag, *arguments, lines=given)
        assert f"{counts} tokens are [UNK]" in caplog.text
        assert caplog.text.count(f"Empty lines: {empty}") == bool(empty)
        if program in ("score", "predict"):
            rates = [answer["unknown_rate"] for answer in done.lines]
            assert rates == ([0, 0, 4 / 6, 0] if program == "score" else [0, 4 / 6])
            place = 1 + rates.index(4 / 6)
            assert re.search(f"of 1 texts at least half .first: (text|line) {place}", caplog.text)
    assert json.loads((vectors / "manifest.json").read_text())["unknown_rate"] == 0.5
    caplog.clear()
    done = programs.succeed("bertjax.score", f"--checkpoint={workdir}", lines=("w1 w2",) * 4)
    assert done.lines[0]["unknown_rate"] == 0
    assert "[UNK]" not in caplog.text and "Empty lines" not in caplog.text


def test_lines_in_another_encoding_are_named_with_their_place(workdir):
    given = "w1\nВсе люди рождаются свободными и равными\n".encode("cp1251")
    for program in ("score", "encode"):
        done = programs.run(f"bertjax.{program}", f"--checkpoint={workdir}", raw=given)
        assert "standard input:2: it is not UTF-8" in done.error
        assert "it looks like cp1251, which reads" in done.error


class Terminal(io.BytesIO):
    def isatty(self):
        return True


def test_vectors_are_not_written_onto_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "Output", Terminal)
    done = programs.run("bertjax.encode", f"--checkpoint={tmp_path}", lines=("w1",))
    assert "standard output is a terminal" in done.error and "--output=" in done.error
    assert not done.output
