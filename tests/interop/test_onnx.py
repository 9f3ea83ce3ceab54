"""optimum converts an export to ONNX, and onnxruntime predicts what our model predicts.

optimum-onnx 0.1 wants a transformers of before 5, so it has an environment of its own here, too.
"""

import json
import subprocess

import numpy as np
import pytest

import bertjax
from bertjax.convert import formats
from tests import environments, finetuned_workdir, lazily, programs, small_records
from tests.convert import weights

lazily.imported("torch")
pytestmark = pytest.mark.slow

RUN = """
import json, sys
import numpy as np
import onnxruntime
model = onnxruntime.InferenceSession(f"{sys.argv[1]}/model.onnx")
ids = np.array([json.loads(sys.argv[2])], np.int64)
given = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
(logits,) = model.run(["logits"], given)
print(json.dumps(logits.tolist()))
"""


@pytest.fixture(scope="module")
def optimum(tmp_path_factory):
    """The programs of an environment with optimum, and with the torch that is here."""
    directory = tmp_path_factory.mktemp("optimum")
    programs = environments.make(directory, borrowed=[environments.here()])
    environments.install(programs, "optimum-onnx[onnxruntime]")
    return programs


def exported(workdir, optimum, directory, task, *options):
    """Returns our model, and a function from token ids to the logits of the one of ONNX."""
    target, made = directory / "exported", directory / "onnx"
    programs.succeed("bertjax.convert", f"--from={workdir}", f"--to={target}", *options)
    command = [optimum / "optimum-cli", "export", "onnx", f"--model={target}", f"--task={task}"]
    done = subprocess.run([*command, made], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]

    def logits(ids):
        command = [optimum / "python", "-c", RUN, made, json.dumps(ids)]
        return np.array(json.loads(subprocess.check_output(command)))[0]

    return bertjax.load(target), logits


def softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def test_masks_are_filled_alike(optimum, tmp_path, one_device):
    made = weights.make("pretraining", norm_scale=1.0)
    formats.write(made, tmp_path / "run", format="bertjax")
    given = (tmp_path / "run", optimum, tmp_path, "fill-mask", "--head=masked_lm")
    model, logits = exported(*given)
    (candidates,) = model.fill_mask("w1 [MASK] w2", num_candidates=5)
    vocabulary = made.vocabulary
    ids = [vocabulary.cls_id, *vocabulary.encode_with_masks("w1 [MASK] w2"), vocabulary.sep_id]
    probabilities = softmax(logits(ids)[ids.index(vocabulary.mask_id)])
    best = probabilities.argsort()[::-1][:5]
    assert [vocabulary.token(int(it)) for it in best] == [it["token"] for it in candidates]
    ours = [it["probability"] for it in candidates]
    np.testing.assert_allclose(probabilities[best], ours, rtol=1e-4)


def test_a_class_is_as_likely(optimum, tmp_path, one_device):
    finetuned_workdir.write(tmp_path / "run", "table")
    _, logits = exported(tmp_path / "run", optimum, tmp_path, "text-classification")
    finetuned = bertjax.load(tmp_path / "run")
    (answer,) = finetuned.predict([{"text": "w1 w2 w3"}])
    vocabulary = small_records.vocabulary()
    ids = [vocabulary.cls_id, *vocabulary.encode("w1 w2 w3"), vocabulary.sep_id]
    np.testing.assert_allclose(
        softmax(logits(ids)), list(answer["probabilities"].values()), rtol=1e-4
    )
