"""Claims about what older code left: later code reads it, goes on with it and answers the same.

The files of tests/golden/before were made by the programs of one commit (see make_before.py there),
and the programs of today are run on them as a user runs them, so nothing here knows where in the
package something is.
"""

import hashlib
import io
import json
import math
import os
import pathlib
import tarfile

import numpy as np
import pytest
from safetensors import numpy as safetensors

from bertjax.models import layers, weight_masks
from tests import programs

ROOT = pathlib.Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
BEFORE = GOLDEN / "before"
slow = pytest.mark.slow

# What is computed has the tolerance of rounding: processors sum in different orders, and XLA picks
# its instructions by processor and release. On the machine of made_with.json, with the same JAX,
# BERTJAX_EXACT_PINS=1 asks for every bit.
IS_EXACT = os.environ.get("BERTJAX_EXACT_PINS") == "1"
RELATIVE, ABSOLUTE = 1e-5, 1e-6
# Adam makes steps of the size of the learning rate, 0.01, of gradients that are almost nothing.
PARAMETERS_ABSOLUTE = 1e-5
# An answer of such parameters is a sum over all of them.
TRAINED_ABSOLUTE = 1e-4
# Each adds one number to all that a softmax compares, which does not see it: their gradient is
# rounding alone, which Adam makes large.
WITHOUT_GRADIENT = (".attention.self.key.bias", "qa_outputs.bias")

FINETUNED = ("classification", "regression", "table", "mean", "spans", "tags", "choices", "lora")
LARGE = pytest.param("feature_based", marks=slow)  # 76 MB of a BiLSTM
REFUSED = ("mean", "feature_based")


@pytest.fixture(autouse=True)
def place(monkeypatch, one_device):
    """Where a user stands, with one device as then."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def masks_of_then(monkeypatch):
    """Attention's dropout as it was: today two keys share a hash, and that is all that changed."""
    monkeypatch.setattr(weight_masks, "kept", layers.keep_mask)


def told(name):
    return json.loads((BEFORE / f"{name}.json").read_text(encoding="utf-8"))


def unpacked(name, directory):
    """Returns the workdir of an archive."""
    with tarfile.open(BEFORE / f"{name}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / name


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def assert_same(found, expected, where="", *, absolute=ABSOLUTE):
    """Asserts that values of JSON are the same, numbers within the tolerance."""
    if isinstance(expected, float) and isinstance(found, float) and not IS_EXACT:
        is_close = math.isclose(found, expected, rel_tol=RELATIVE, abs_tol=absolute)
        assert is_close, f"{where}: {found} is not {expected}"
    elif isinstance(expected, dict) and isinstance(found, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}/{key}", absolute=absolute)
    elif isinstance(expected, list) and isinstance(found, list):
        assert len(found) == len(expected), where
        for number, value in enumerate(expected):
            assert_same(found[number], value, f"{where}/{number}", absolute=absolute)
    else:
        assert found == expected, where


def assert_same_parameters(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if IS_EXACT:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        elif not name.endswith(WITHOUT_GRADIENT):
            np.testing.assert_allclose(
                found[name], value, rtol=RELATIVE, atol=PARAMETERS_ABSOLUTE, err_msg=name
            )


def export(workdir, *options):
    """Returns the directory that a workdir is exported to."""
    target = workdir.with_name(f"{workdir.name}_exported")
    programs.succeed("bertjax.convert", f"--from={workdir}", f"--to={target}", *options)
    return target


def parameters(workdir):
    return safetensors.load_file(export(workdir) / "model.safetensors")


def metrics(workdir):
    """Returns what a run reported, without what depends on the clock."""
    lines = (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("perf/")}
        for line in lines
    ]


def assert_same_metrics(name, found):
    """Asserts that a run reported what it reported then, but for masks that are drawn otherwise."""
    expected = told(name)["metrics"]
    if name == "dynamic":  # The masks of an evaluation depended on the batch size.
        found, expected = (
            [{key: value for key, value in line.items() if "eval/" not in key} for line in lines]
            for lines in (found, expected)
        )
    assert_same(found, expected)


def assert_exported_as_before(directory, before):
    """Asserts that config, vocabulary and parameters, which are copies, are what they were."""
    assert json.loads((directory / "config.json").read_text()) == before["config"]
    assert {name: sha256(directory / name) for name in before["sha256"]} == before["sha256"]


def train(name, workdir, data, *more):
    """Trains with the options that were given then; the data lie in a directory of their own."""
    before = told(name)
    options = [option.replace("=data/", f"={data}/data/") for option in before["train"]]
    recipe = f"--config={before['config']}"
    programs.succeed("bertjax.train", recipe, f"--workdir={workdir}", *options, *more)


def records_options(name, directory):
    records = directory / f"{name}_records"
    # Then nobody minded that what was trained on was called held out.
    on_purpose = "--config.data.eval_may_overlap"
    return f"--config.data.train_dir={records}", f"--config.data.eval_dir={records}", on_purpose


PRETRAINED = [pytest.param(name, marks=slow) for name in ("pretraining", "dynamic")]


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_run_of_pretraining_goes_on_as_if_nothing_had_happened(
    name, tmp_path, masks_of_then, caplog
):
    workdir = unpacked(name, tmp_path)
    assert [line["step"] for line in metrics(workdir)][-1] == 8  # of which two are forgotten
    train(name, workdir, tmp_path, *records_options(name, tmp_path))
    assert "attention_masks: was 1, is 2" in caplog.text
    assert_same_metrics(name, metrics(workdir))
    assert_same_parameters(
        parameters(workdir), safetensors.load_file(BEFORE / f"{name}.safetensors")
    )


@slow
@pytest.mark.parametrize("name", ["pretraining", "dynamic"])
def test_a_fresh_run_begins_and_ends_with_the_same_parameters(name, tmp_path, masks_of_then):
    unpacked(name, tmp_path)
    train(name, tmp_path / "fresh", tmp_path, *records_options(name, tmp_path))
    assert_same_metrics(name, metrics(tmp_path / "fresh"))
    expected = safetensors.load_file(BEFORE / f"{name}.safetensors")
    assert_same_parameters(parameters(tmp_path / "fresh"), expected)


@slow
@pytest.mark.parametrize("name", ["table_stopped", "spans_stopped"])
def test_a_run_of_finetuning_goes_on_as_if_nothing_had_happened(name, tmp_path, masks_of_then):
    workdir = unpacked(name, tmp_path)
    assert not (workdir / "predictions").exists()
    train(name, workdir, tmp_path)
    assert_finetuned_as_before(name, workdir)


@slow
def test_a_fresh_run_of_finetuning_from_a_run_of_pretraining_is_the_same(tmp_path, masks_of_then):
    source = unpacked("pretraining", tmp_path)
    train("pretraining", source, tmp_path, *records_options("pretraining", tmp_path))
    unpacked("table_stopped", tmp_path)
    train("table_stopped", tmp_path / "fresh", tmp_path, f"--config.init_from={source}")
    assert_finetuned_as_before("table_stopped", tmp_path / "fresh")


def assert_finetuned_as_before(name, workdir):
    before = told(name)
    assert_same(metrics(workdir), before["metrics"])
    for file, text in before["predictions"].items():
        found = (workdir / "predictions" / file).read_text(encoding="utf-8")
        if file.endswith(".json"):
            assert_same(json.loads(found), json.loads(text), file, absolute=TRAINED_ABSOLUTE)
        else:
            assert found == text
    assert_same_parameters(
        parameters(workdir), safetensors.load_file(BEFORE / f"{name}.safetensors")
    )


@pytest.mark.parametrize("name", [*FINETUNED, LARGE])
def test_a_finetuned_model_answers_and_is_exported_as_before(name, tmp_path):
    workdir, before = unpacked(name, tmp_path), told(name)
    model = f"--checkpoint={workdir}"
    answered = programs.succeed("bertjax.predict", model, lines=before["lines"])
    assert_same(answered.lines, before["answers"])
    if name in REFUSED:
        target = f"--to={tmp_path / 'out'}"
        refused = programs.run("bertjax.convert", f"--from={workdir}", target)
        assert refused.error.replace(f"{tmp_path}/", "") == before["export"]["error"]
    elif name == "lora" and not IS_EXACT:  # The product of its factors is rounded, and no copy.
        expected = safetensors.load_file(BEFORE / "lora.safetensors")
        assert_same_parameters(parameters(workdir), expected)
    else:
        assert_exported_as_before(export(workdir), before["export"])


def test_a_pretrained_model_fills_masks_and_is_scored_as_before(tmp_path):
    workdir, before = unpacked("pretraining", tmp_path), told("answers")
    model = f"--checkpoint={workdir}"

    masks = before["fill_mask"]
    filled = programs.succeed("bertjax.fill_mask", model, "--json", *masks["texts"])
    assert_same(filled.lines, masks["answers"])

    data = f"--data={tmp_path / 'pretraining_records'}"
    scored = programs.succeed("bertjax.evaluate", model, "--json", data, "--batch_size=16")
    assert_same(scored.lines, [before["evaluate"]])


@pytest.mark.parametrize(
    "name",
    ["last_none", pytest.param("last_cls", marks=slow), pytest.param("last_mean", marks=slow)],
)
def test_texts_are_encoded_as_before(name, tmp_path):
    model = f"--checkpoint={unpacked('pretraining', tmp_path)}"
    before = told("answers")["encode"]
    options = before["options"][name]
    encoded = programs.succeed("bertjax.encode", model, *options, lines=before["lines"])
    expected = (BEFORE / f"encoded_{name}.npz").read_bytes()
    assert_same(listed(encoded.output), listed(expected))


def listed(archive):
    return {name: array.tolist() for name, array in np.load(io.BytesIO(archive)).items()}


@pytest.mark.parametrize("head", ["pretraining", "sequence_classification", "token_classification"])
def test_a_converted_checkpoint_is_exported_to_the_same_bytes(head, tmp_path):
    before = told("converted")[head]
    old = unpacked(f"converted_{head}", tmp_path)
    assert_exported_as_before(export(old), before)
    new = tmp_path / "new"
    program = "bertjax.convert"
    programs.succeed(program, f"--from={GOLDEN / head}", f"--to={new}", "--format=bertjax")
    assert_exported_as_before(export(new), before)


@pytest.mark.parametrize("name", PRETRAINED)
def test_records_are_built_to_the_same_bytes(name, tmp_path, monkeypatch):
    before = told(name)
    monkeypatch.chdir(BEFORE)
    output = tmp_path / "records"
    programs.succeed("data_pipelines.build", *before["build"], f"--output={output}")
    assert {file: sha256(output / file) for file in before["shards"]} == before["shards"]
