"""Single TFRecord files: the bytes that TensorFlow would write, whole or not at all."""

import os
import subprocess
import sys

import numpy as np

from bertjax.data import record_files, records


def test_a_shard_holds_what_tensorflow_would_write(tmp_path):
    tf, rng = records.import_tensorflow(), np.random.default_rng(0)
    serialized = [rng.bytes(size) for size in (0, 1, 300, 300, 70_000)]
    with tf.io.TFRecordWriter(str(tmp_path / "by_tensorflow")) as writer:
        for record in serialized:
            writer.write(record)
    shard = record_files.write_shard(tmp_path / "ours", iter(serialized))
    content = (tmp_path / "ours").read_bytes()
    assert content == (tmp_path / "by_tensorflow").read_bytes()
    assert shard == records.Shard(file="ours", examples=5, bytes=len(content))


def test_a_shard_of_several_blocks_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "WRITE_BLOCK_BYTES", 1000)
    serialized = [bytes([place]) * 100 * place for place in range(20)]
    shard = record_files.write_shard(tmp_path / "shard", serialized)
    assert shard.examples == 20
    assert shard.bytes == (tmp_path / "shard").stat().st_size
    tf = records.import_tensorflow()
    assert list(tf.data.TFRecordDataset(str(tmp_path / "shard")).as_numpy_iterator()) == serialized


def test_a_full_disk_is_one_clear_error(tmp_path):
    # A limit of the process stands for the disk's; without a handler its signal would kill. The
    # first shard fails when it is closed, the second when it is written.
    code = (
        "import resource, signal\n"
        "from bertjax.data import record_files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "for size in (10_000, 10_000_000):\n"
        "    try:\n"
        f"        record_files.write_shard({str(tmp_path / 'shard')!r}, [bytes(size)])\n"
        "    except OSError as error:\n"
        "        print(error)\n"
    )
    lines = subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "File too large: the shard was not written" in line
        assert str(tmp_path / "shard") in line
    assert os.listdir(tmp_path) == []
