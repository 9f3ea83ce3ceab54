"""The bytes of records, beside those that protobuf and TensorFlow write."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bertjax.data import encoding

EDGES = np.array([0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**21, 2**40, 2**63 - 1])


def by_protobuf(batch, row):
    """Returns the row as protobuf serializes it."""

    def feature(values):
        values = np.ravel(values)
        if values.dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values.tolist()))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values.astype(int).tolist()))

    features = {name: feature(values[row]) for name, values in batch.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(
        deterministic=True
    )


def assert_as_protobuf(batch, rows):
    assert encoding.encode_batch(batch) == [by_protobuf(batch, row) for row in range(rows)]


@pytest.mark.parametrize("seed", range(20))
def test_random_batches_are_encoded_as_by_protobuf(seed):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 40))
    batch = {}
    for number in range(rng.integers(1, 6)):
        shape = (rows, int(rng.integers(0, 150)))
        known = EDGES[: rng.integers(2, len(EDGES) + 1)]
        batch[f"integers_{rng.integers(1000)}_{number}"] = rng.choice(known, shape)
        batch[f"floats{number}"] = rng.normal(size=shape).astype(np.float32)
    assert_as_protobuf(batch, rows)


@pytest.mark.parametrize("high", [1, 127, 128, 30_521, 65_535, 65_536, 2**31 - 1])
def test_bert_features_are_encoded_as_by_protobuf(high):
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


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int64, np.uint64])
def test_every_kind_of_integer_is_encoded(dtype):
    top = min(np.iinfo(dtype).max, 2**63 - 1)
    assert_as_protobuf({"a": np.array([[0, 5], [top, 1]], dtype)}, 2)


def test_arrays_that_are_not_contiguous_are_encoded():
    square = np.arange(36).reshape(6, 6)
    assert_as_protobuf({"a": square.T, "b": square[:, ::2].astype(np.float32)}, 6)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (np.array([[3], [-1]]), ValueError, "input_ids holds -1; .* between 0 and 2\\^63-1"),
        (np.array([[2**63]], np.uint64), ValueError, "input_ids holds 9223372036854775808"),
        (np.array([["a"]]), TypeError, "input_ids has dtype <U1; it must hold numbers"),
        (np.array(3), ValueError, "input_ids is a single number"),
    ],
    ids=["negative", "too large", "text", "no rows"],
)
def test_what_cannot_be_encoded_is_refused(values, error, message):
    with pytest.raises(error, match=message):
        encoding.encode_batch({"input_ids": values})


def test_arrays_of_unequal_rows_are_refused():
    with pytest.raises(ValueError, match="equally many rows.*'a': 2, 'b': 3"):
        encoding.encode_batch({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))})


def test_frames_are_those_of_tensorflow(tmp_path):
    rng = np.random.default_rng(0)
    written = [rng.bytes(size) for size in (0, 1, 300, 300, 70_000)]
    with tf.io.TFRecordWriter(str(tmp_path / "file")) as writer:
        for record in written:
            writer.write(record)
    assert b"".join(map(encoding.frame, written)) == (tmp_path / "file").read_bytes()


def test_writing_needs_no_tensorflow(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from bertjax.data import records\n"
        f"records.write_shard({str(tmp_path / 'shard')!r}, records.encode_batch("
        "{'a': np.zeros((2, 3), np.int32)}))\n"
        "assert 'tensorflow' not in sys.modules and 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_batch_without_rows_encodes_to_nothing():
    assert encoding.encode_batch({"a": np.zeros((0, 3), np.int32)}) == []
