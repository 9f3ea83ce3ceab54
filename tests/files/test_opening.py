"""Claims about files that others wrote: whatever they are, they end in one line that names them."""

import io
import itertools
import os
import random
import struct
import threading
import zipfile

import numpy as np
import pytest

from bertjax.data import encoding, record_files, records, streams
from bertjax.files import json_text, opening
from tests import small_records


def test_a_file_is_read_behind_links_and_nothing_else_is(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"a": 1}')
    (tmp_path / "link").symlink_to(path)  # as in the cache of Hugging Face
    assert json_text.read_object(tmp_path / "link") == {"a": 1}
    os.mkfifo(tmp_path / "pipe")
    for name, kind in {"pipe": "a named pipe", "": "a directory"}.items():
        with pytest.raises(ValueError, match=f"{name} is {kind}; it must be a file"):
            json_text.read_object(tmp_path / name)
    with pytest.raises(ValueError, match="/dev/zero is a device or a socket"):
        json_text.read_object("/dev/zero")


def test_a_pipe_is_an_input_that_is_read_once_and_no_array(tmp_path):
    path = tmp_path / "pipe.npy"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="pipe.npy is a named pipe; it must be a file"):
        opening.open_array(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"one\rtwo",))
    writer.start()
    sizes = []
    with opening.opened(path, "utf-8", sizes.append) as file:
        assert file.read() == b"one\ntwo" and sum(sizes) == 7
    writer.join()
    with pytest.raises(ValueError, match="is a pipe, which can be read once"), opening.opened(path):
        pass


def test_settings_of_another_size_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(opening.SETTINGS_BYTES + 1)
    with pytest.raises(ValueError, match=r"config.json has 67,108,865 bytes.* at most 67,108,864"):
        json_text.read_object(path)


def test_damaged_arrays_name_their_file_whatever_their_header_says(tmp_path):
    content = io.BytesIO()
    np.save(content, np.arange(12).reshape(3, 4))
    path, generator = tmp_path / "array.npy", random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content.getvalue())
        for _ in range(3):
            damaged[generator.randrange(128)] = generator.randrange(256)
        path.write_bytes(damaged)
        try:
            opening.open_array(path)
        except ValueError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 200
    # The header of an array of two terabytes, and one that Python cannot split into words.
    for text in ("{'descr': '<i8', 'fortran_order': False, 'shape': (1 << 38,), }", "{'a': ('"):
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + text.ljust(117).encode())
        with pytest.raises(ValueError, match=r"array.npy cannot be read as an array"):
            opening.open_array(path)


def test_an_archive_that_grows_beyond_measure_is_not_unpacked(tmp_path):
    path = tmp_path / "contents.npz"
    np.savez_compressed(path, counts=np.arange(100))
    assert opening.read_arrays(path)["counts"].sum() == 4950
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("counts.npy", bytes(200 * 2**20))
    with pytest.raises(ValueError, match=r"contents.npz is damaged \(.* bytes would become 209"):
        opening.read_arrays(path)


def test_a_record_that_claims_to_be_longer_than_its_file_is_not_asked_for(tmp_path):
    directory = small_records.write(tmp_path / "records")
    shard = records.open(directory).shard_paths[0]
    record_files.check_frames(shard)
    header = encoding._frame_header(2**40)  # whose checksum is right
    with open(shard, "r+b") as file:
        file.write(header)
    message = r"byte 0 says that it has 1,099,511,627,776 bytes"
    with pytest.raises(ValueError, match=message):
        record_files.serialized(shard)
    record_set = records.open(directory)
    for read in (
        lambda: streams.train_batches(record_set, streams.Order(8, seed=0), start_step=0),
        lambda: streams.evaluation_batches(record_set, batch_size=8),
    ):
        with pytest.raises(ValueError, match=message):
            list(itertools.islice(read(), 100))


def test_every_flipped_bit_of_an_archive_is_damage_or_nothing(tmp_path):
    path = tmp_path / "contents.npz"
    np.savez_compressed(path, counts=np.arange(40), hashes=np.arange(9, dtype=np.uint64))
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        try:
            opening.read_arrays(path)
        except ValueError as error:
            assert "contents.npz is damaged" in str(error)
