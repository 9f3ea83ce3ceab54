"""Outputs that are not finite are refused, and so is a vocabulary that the weights do not have."""

import json
import shutil

import jax
import numpy as np
import pytest

from bertjax import encode, evaluate, fill_mask, inference, predict
from bertjax.convert import __main__ as convert
from bertjax.convert import formats, workdir
from bertjax.jobs import finetuning
from bertjax.workdirs import reader
from tests import finetuned_workdir, small_datasets, small_records
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """Weights in every format; their vocabulary has 95 entries, as many as the table has rows."""
    root = tmp_path_factory.mktemp("forms")
    for name in formats.FORMATS:
        weights.write(weights.make(), root / name, name)
    return root


def with_more_words(directory, target):
    """Copies weights, and puts a vocabulary beside them that has five entries too many."""
    shutil.copytree(directory, target)
    for place in (target, target / reader.VOCABULARY_DIRECTORY):
        if (place / "vocab.txt").exists():
            small_records.vocabulary([f"w{number}" for number in range(95)]).save(place)
            (place / "tokenizer.json").unlink(missing_ok=True)  # which counts first
    return target


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_vocabulary_larger_than_the_embedding_table_is_refused(forms, tmp_path, name):
    wrong = with_more_words(forms / name, tmp_path / "wrong")
    said = "100 entries.*95"
    with pytest.raises(ValueError, match=said):
        convert.convert(wrong, tmp_path / "out", format="bertjax")
    with pytest.raises(ValueError, match=said):
        formats.describe(wrong)
    with pytest.raises(ValueError, match=said):
        finetuning.open_job(small_datasets.make_config(tmp_path / "data", "table", wrong))
    if name == "bertjax":
        with pytest.raises(ValueError, match=said):
            inference.load(wrong)
        with pytest.raises(ValueError, match=said):
            workdir.read(wrong)


def broken(tmp_path, make):
    """Writes a workdir of which every parameter is NaN."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        original = workdir.checkpoint.Checkpointer.save_params

        def save(self, params, meta):
            nan = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), params)
            original(self, nan, meta)

        monkeypatch.setattr(workdir.checkpoint.Checkpointer, "save_params", save)
        make(tmp_path / "broken")
    return tmp_path / "broken"


@pytest.mark.slow
def test_nan_is_no_answer_of_a_pretrained_model(tmp_path):
    model = inference.load(broken(tmp_path, lambda path: workdir.write(weights.make(), path)))
    with pytest.raises(ValueError, match=r"outputs for 'w1 \[MASK\]' hold NaN"):
        fill_mask.fill_mask(model, "w1 [MASK]")
    with pytest.raises(ValueError, match="outputs for texts 1 to 2 hold NaN"):
        encode.encode(model, ["w1", "w2"])


@pytest.mark.parametrize(
    ("dataset", "line"),
    [
        ("table", {"text": "w1"}),
        ("conll", {"words": ["w1", "w2"]}),
        ("squad", {"question": "w1", "context": "w2 w3"}),
    ],
)
def test_nan_is_no_answer_of_a_finetuned_model(tmp_path, dataset, line):
    where = broken(tmp_path, lambda path: finetuned_workdir.write(path, dataset))
    with pytest.raises(ValueError, match="outputs for the lines from 1 to 2 hold NaN"):
        list(predict.predict(inference.load_finetuned(where), [line, line], batch_size=2))


def test_nan_has_no_scores(tmp_path):
    where = broken(tmp_path, lambda path: finetuned_workdir.write(path, "table"))
    file = tmp_path / "dev.jsonl"
    rows = [{"text": "w1 w2", "label": "bad"}, {"text": "w3", "label": "good"}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"dev\.jsonl .loss .*nan.* hold NaN"):
        evaluate.evaluate_checkpoint(str(where), str(file), batch_size=2)
