"""The items of a checkpoint by themselves."""

import jax
import numpy as np
import pytest

from bertjax.workdirs import checkpoint_storage


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "matrix": rng.normal(size=(5, 7)).astype(np.float32),
        "of other strides": rng.normal(size=(4, 6)).astype(np.float32).T,
        "number": np.array(-3, np.int32),
        "none": np.zeros((0, 3), np.float32),
    }


def test_the_host_and_the_devices_find_the_same_fingerprints(arrays):
    on_devices = jax.tree.map(jax.numpy.asarray, arrays)
    found = checkpoint_storage.fingerprint(on_devices)
    assert len(set(found)) == len(arrays)
    assert checkpoint_storage.fingerprint(arrays) == found


def test_what_is_on_the_host_is_not_brought_to_a_device(arrays):
    with jax.transfer_guard("disallow"):
        before = checkpoint_storage.fingerprint(arrays)
    arrays["matrix"].view(np.uint32)[2, 3] ^= 1
    after = checkpoint_storage.fingerprint(arrays)
    assert [one != other for one, other in zip(before, after, strict=True)].count(True) == 1
