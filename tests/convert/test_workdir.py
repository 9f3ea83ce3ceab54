"""Claims about workdirs made of weights from elsewhere."""

import dataclasses

import numpy as np
import pytest

from bertjax import encode, evaluate, fill_mask, inference, train
from bertjax.convert import heads, workdir
from bertjax.workdirs import checkpoint
from configs import smoke
from tests import small_records
from tests.convert import weights


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification", "sequence_to_sequence"])
def test_a_written_workdir_encodes_and_fills_masks_if_it_can(tmp_path, head):
    made = weights.make(head)
    workdir.write(made, tmp_path / "run")
    model = inference.load(tmp_path / "run")
    features = encode.encode(model, ["w1 w2"])["features"]
    if head == "masked_lm":
        (candidates,) = fill_mask.fill_mask(model, "w1 [MASK] w2")
        assert len(candidates) == 5
        assert features.shape == (1, 32) and np.isfinite(features).all()
        return
    with pytest.raises(ValueError, match="has no masked-token head"):
        fill_mask.fill_mask(model, "w1 [MASK] w2")
    filling = weights.make("masked_lm").params | made.params  # the same encoder
    with_head = {path: a for path, a in filling.items() if heads.belongs(path, "masked_lm")}
    other = dataclasses.replace(made, params=with_head, head="masked_lm", labels={})
    workdir.write(other, tmp_path / "other")
    wanted = encode.encode(inference.load(tmp_path / "other"), ["w1 w2"])["features"]
    np.testing.assert_allclose(features, wanted, atol=1e-6)


def test_a_written_workdir_is_evaluated_and_never_resumed(tmp_path):
    workdir.write(weights.make(), tmp_path / "run")
    data = small_records.write(tmp_path / "data", counts=(16,))
    scores = evaluate.evaluate_checkpoint(str(tmp_path / "run"), str(data), batch_size=16)
    assert scores["examples"] == 16
    config = smoke.get_config()
    config.data.update(source="records", train_dir=str(data))
    config.model.vocab_size = 0
    config.phases.phase1.max_seq_length = 16
    with pytest.raises(checkpoint.CheckpointError, match=f"init_from={tmp_path / 'run'} and ano"):
        train.train(config, tmp_path / "run")
    weights.assert_equal(workdir.read(tmp_path / "run"), weights.make())  # nothing was set aside
