"""pytorch_model.bin: what torch writes is read, and nothing that is written there is run.

The archives are put together here opcode by opcode, as torch.save writes them; tests/golden holds
two of torch itself, which test_parity reads.
"""

import copy
import os
import pickle
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from bertjax.convert import pickled_weights

MARK, TUPLE, REDUCE, BUILD, PERSISTENT, FALSE = b"(", b"t", b"R", b"b", b"Q", b"\x89"


def word(module, name):
    return f"c{module}\n{name}\n".encode()


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def tuple_of(*items):
    return MARK + b"".join(items) + TUPLE


def numbers(values):
    return tuple_of(*map(number, values))


def call(function, *arguments):
    return function + tuple_of(*arguments) + REDUCE


def storage(kind="FloatStorage", key="0", count=6):
    items = (text("storage"), word("torch", kind), text(key), text("cpu"), number(count))
    return tuple_of(*items) + PERSISTENT


def tensor(stored, shape, stride, offset=0):
    hooks = call(word("collections", "OrderedDict"))
    rebuild = word("torch._utils", "_rebuild_tensor_v2")
    return call(rebuild, stored, number(offset), numbers(shape), numbers(stride), FALSE, hooks)


def state_dict(**entries):
    """An OrderedDict with the attribute that torch hangs on it."""
    items = b"".join(text(name) + value for name, value in entries.items())
    metadata = b"}" + text("_metadata") + b"}s"
    return call(word("collections", "OrderedDict")) + MARK + items + b"u" + metadata + BUILD


def write(path, pickled, members=None, folder="pytorch_model"):
    members = {"0": np.arange(6, dtype=np.float32)} if members is None else members
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", b"\x80\x02" + pickled + b".")
        archive.writestr(f"{folder}/byteorder", b"little")
        for key, values in members.items():
            archive.writestr(f"{folder}/data/{key}", values.tobytes())
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pytorch_model.bin"


def test_tensors_are_read_with_their_shapes_offsets_and_strides(path):
    stored = storage()
    write(path, state_dict(
        rows=tensor(stored, (2, 3), (3, 1)),
        columns=tensor(stored, (3, 2), (1, 3)),
        end=tensor(stored, (2,), (1,), offset=4),
        scalar=tensor(stored, (), ()),
        empty=tensor(stored, (0, 3), (3, 1)),
        parameter=call(
            word("torch._utils", "_rebuild_parameter"), tensor(stored, (2,), (1,)), FALSE, FALSE
        ),
    ))  # fmt: skip
    read = pickled_weights.read_pickle(path)
    np.testing.assert_array_equal(read["rows"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(read["columns"], read["rows"].T)
    np.testing.assert_array_equal(read["end"], [4, 5])
    np.testing.assert_array_equal(read["parameter"], [0, 1])
    assert read["scalar"].shape == ()
    assert read["empty"].shape == (0, 3)


def test_every_type_is_read_as_it_is(path):
    for kind, dtype in {
        "HalfStorage": np.float16,
        "BFloat16Storage": ml_dtypes.bfloat16,
        "DoubleStorage": np.float64,
        "LongStorage": np.int64,
    }.items():
        values = np.array([1.5, -2, 3], dtype)
        write(path, state_dict(a=tensor(storage(kind, "0", 3), (3,), (1,))), {"0": values})
        read = pickled_weights.read_pickle(path)["a"]
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, values)


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def attacks(target):
    code = f"open({str(target)!r}, 'w')"
    rebuild = word("torch._utils", "_rebuild_tensor_v2")
    return {
        "reduce": pickle.dumps({"a": Payload(target)}, protocol=2)[2:-1],
        "stack_global": pickle.dumps({"a": Payload(target)}, protocol=4)[2:-1],
        "exec": call(word("builtins", "exec"), text(code)),
        "inst": MARK + text(code) + b"ibuiltins\nexec\n",
        "obj": MARK + word("builtins", "exec") + text(code) + b"o",
        "getattr": call(word("builtins", "getattr"), rebuild, text("__globals__")),
        "dotted": word("torch._utils", "_rebuild_tensor_v2.__call__"),
        "torch_load": call(word("torch", "load"), text("x")),
        "changed_word": rebuild + b"}" + text("__call__") + number(1) + b"s" + BUILD,
        "changed_slots": rebuild + b"N}" + text("__code__") + number(1) + b"s\x86" + BUILD,
        "new_object": rebuild + b")\x81",
        "persistent": text("os.system") + PERSISTENT,
        "in_a_tensor": call(
            rebuild, storage(), number(0), numbers((2,)), numbers((1,)), FALSE,
            call(word("builtins", "exec"), text(code)),
        ),
    }  # fmt: skip


def test_code_is_refused_and_not_run(path, tmp_path):
    target = tmp_path / "written_by_the_payload"
    for name, pickled in attacks(target).items():
        write(path, pickled)
        with pytest.raises(ValueError, match=r"pytorch_model\.bin is (refused|damaged)") as caught:
            pickled_weights.read_pickle(path)
        assert not target.exists(), name
        if name == "exec":
            assert "nothing in it was run: it asks for builtins.exec" in str(caught.value)
    # Which is worth something: the plain unpickler runs what it holds.
    pickle.loads(b"\x80\x02" + attacks(target)["reduce"] + b".")
    assert target.exists()


LIES = [
    (tensor(storage(), (2, 4), (4, 1)), r"shape \[2, 4\] reaches beyond its 6 stored"),
    (tensor(storage(), (3,), (1,), offset=4), "reaches beyond"),
    (tensor(storage(), (2,), (-1,), offset=4), "strides"),
    (tensor(storage(), (2**20, 2**20), (0, 0)), "reaches beyond"),
    (tensor(storage(), (2,), (1, 1)), "strides"),
    (tensor(storage(count=7), (6,), (1,)), "has 24 bytes; 7 numbers of float32 have 28"),
    (tensor(storage(key="1"), (6,), (1,)), "data/1 is missing"),
    (tensor(text("0"), (6,), (1,)), "something else than a storage"),
    (tensor(storage("QInt8Storage"), (6,), (1,)), "asks for torch.QInt8Storage"),
]


def test_what_is_not_a_tensor_or_lies_about_its_numbers_is_refused(path):
    for entry, message in LIES:
        write(path, state_dict(a=entry))
        with pytest.raises(ValueError, match=message):
            pickled_weights.read_pickle(path)
    write(path, state_dict(a=tensor(storage(), (6,), (1,)), epoch=number(3), model=b"}"))
    with pytest.raises(ValueError, match=r"'epoch' is a int\n.*'model' is a dict"):
        pickled_weights.read_pickle(path)


def test_a_compressed_member_is_refused_before_it_is_read(path):
    write(path, state_dict(a=tensor(storage(), (6,), (1,))))
    bomb = np.zeros(2**24, np.float32)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pytorch_model/data/1", bomb.tobytes())
    assert path.stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"data/1 is compressed, 67,108,864 bytes in 6\d,\d+; "):
        pickled_weights.read_pickle(path)


def test_members_that_share_their_bytes_are_refused(path):
    """All of them stored, and each as large as the file; only one of them is there."""
    values = np.arange(2**16, dtype=np.float32)
    write(path, state_dict(a=tensor(storage(count=2**16), (2**16,), (1,))), {"0": values})
    with zipfile.ZipFile(path, "a") as archive:
        (info,) = (it for it in archive.infolist() if it.filename.endswith("data/0"))
        for number in range(1, 50):
            other = copy.copy(info)
            other.filename = f"pytorch_model/data/{number}"
            archive.filelist.append(other)
        archive._didModify = True
    with pytest.raises(ValueError, match="its members declare 13,.* bytes; the file has 2"):
        pickled_weights.read_pickle(path)


def test_copies_of_one_list_do_not_fill_the_memory(path):
    """A pickle of a megabyte that would make dicts with ten thousand million names."""
    pairs = b"]q\x01(" + b"".join(
        text(f"n{place}") + number(place) + b"\x86" for place in range(10_000)
    ) + b"e"  # fmt: skip
    again = word("collections", "OrderedDict") + b"h\x01\x85" + REDUCE + b"0"
    write(path, pairs + b"0" + again * 20_000 + state_dict())
    with pytest.raises(ValueError, match="its dicts have more than 1,000,000 names"):
        pickled_weights.read_pickle(path)


def test_tensors_that_use_the_same_numbers_over_and_over_are_refused(path):
    values = np.arange(2**14, dtype=np.float32)
    entries = {f"t{n}": tensor(storage(count=2**14), (2**14,), (1,)) for n in range(12)}
    write(path, state_dict(**entries), {"0": values})
    with pytest.raises(ValueError, match=r"is refused: its 12 tensors have 786,432 bytes"):
        pickled_weights.read_pickle(path)


def test_a_legacy_file_a_truncated_one_and_a_missing_one_are_errors(path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        pickled_weights.read_pickle(path)
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2))
    with pytest.raises(ValueError, match=r"not a zip archive, as torch has written since .* 1\.6"):
        pickled_weights.read_pickle(path)
    whole = write(path, state_dict(a=tensor(storage(), (6,), (1,)))).read_bytes()
    for keep in (0.1, 0.5, 0.95):
        path.write_bytes(whole[: int(len(whole) * keep)])
        with pytest.raises(ValueError, match="cut short"):
            pickled_weights.read_pickle(path)


def test_any_altered_byte_is_an_error_or_harmless(path):
    """Whatever is altered, what is raised is a ValueError; numbers are guarded by their CRC."""
    write(path, state_dict(a=tensor(storage(), (6,), (1,))))
    whole = bytearray(path.read_bytes())
    for place in range(0, len(whole), 3):
        altered = bytearray(whole)
        altered[place] ^= 0xFF
        path.write_bytes(altered)
        try:
            read = pickled_weights.read_pickle(path)
        except ValueError:
            continue
        np.testing.assert_array_equal(read["a"], np.arange(6))
