"""The bytes of records equal those that protobuf and TensorFlow write."""

import subprocess
import sys

import numpy as np
import pytest

from bertjax.data import encoding, records

EDGES = np.array([0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**40, 2**63 - 1])


def by_protobuf(batch, row):
    """Returns the row as protobuf serializes it."""
    tf = records.import_tensorflow()

    def feature(values):
        values = np.ravel(values)
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values.tolist()))
        if values.dtype == np.uint8:
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values.tobytes()]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype(int).tolist()))

    features = {name: feature(values[row]) for name, values in batch.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


def assert_as_protobuf(batch, rows):
    assert encoding.encode_batch(batch) == [by_protobuf(batch, row) for row in range(rows)]


def test_random_batches_are_encoded_as_by_protobuf():
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(1, 40))
        batch = {}
        for number in range(rng.integers(1, 6)):
            shape = (rows, int(rng.integers(0, 150)))
            values = EDGES[: rng.integers(2, len(EDGES) + 1)]
            batch[f"integers_{rng.integers(1000)}_{number}"] = rng.choice(values, shape)
            batch[f"floats{number}"] = rng.normal(size=shape).astype(np.float32)
        assert_as_protobuf(batch, rows)
    assert encoding.encode_batch({"a": np.zeros((0, 3), np.int32)}) == []


def test_features_of_any_type_and_layout_are_encoded_as_by_protobuf():
    for high in (1, 127, 128, 30_521, 65_535, 65_536, 2**31 - 1):
        rng = np.random.default_rng(high)
        rows = 2 * encoding._ROWS_AT_A_TIME + 3 if high == 30_521 else 50
        batch = {
            "input_ids": rng.integers(0, high, (rows, 16), endpoint=True, dtype=np.int32),
            "input_mask": rng.integers(0, 2, (rows, 16)).astype(bool),
            "masked_lm_positions": rng.integers(0, 512, (rows, 4)),
            "masked_lm_weights": rng.integers(0, 2, (rows, 4)).astype(np.float64),
            "next_sentence_labels": rng.integers(0, 2, rows),
        }
        assert_as_protobuf(batch, rows)
    for dtype in (np.uint8, np.int16, np.uint16, np.int64, np.uint64):
        top = min(np.iinfo(dtype).max, 2**63 - 1)
        assert_as_protobuf({"a": np.array([[0, 5], [top, 1]], dtype)}, 2)
    square = np.arange(36).reshape(6, 6)  # not contiguous
    assert_as_protobuf({"a": square.T, "b": square[:, ::2].astype(np.float32)}, 6)


def test_what_cannot_be_encoded_is_refused():
    for values, error, message in (
        (np.array([[3], [-1]]), ValueError, "input_ids holds -1; .* between 0 and 2\\^63-1"),
        (np.array([[2**63]], np.uint64), ValueError, "input_ids holds 9223372036854775808"),
        (np.array([["a"]]), TypeError, "input_ids has dtype <U1; it must hold numbers"),
        (np.array(3), ValueError, "input_ids is a single number"),
    ):
        with pytest.raises(error, match=message):
            encoding.encode_batch({"input_ids": values})
    with pytest.raises(ValueError, match="equally many rows.*'a': 2, 'b': 3"):
        encoding.encode_batch({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))})


def test_writing_needs_no_tensorflow(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from bertjax.data import encoding, record_files\n"
        f"record_files.write_shard({str(tmp_path / 'shard')!r}, encoding.encode_batch("
        "{'a': np.zeros((2, 3), np.int32)}))\n"
        "assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
