"""Reads pytorch_model.bin without torch and without running code in it.

The file is a zip archive: `data.pkl` describes the tensors in the storages `data/0`, `data/1`, ...
A pickle is a program; the unpickler here knows a few harmless words (tensor, parameter, ordered
dict, the types of storages), listed below, and refuses all others. Source: torch/serialization.py
(the zip format, since torch 1.6) and torch/_utils.py.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pickle
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from etils import epath

STORAGE_TYPES: dict[str, Any] = {
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": ml_dtypes.bfloat16,
    "DoubleStorage": np.float64,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}

# A pickle of 400 names has about 60 kB.
MAX_PICKLE_BYTES = 64 << 20

# Bounds of memory: the names in all dicts of a pickle, and the number of times that all tensors
# together may use the numbers of the file. Tied weights use them twice.
MAX_NAMES = 1_000_000
MAX_USES = 8


class _RefusedError(pickle.UnpicklingError):
    """The pickle asks for something that weights do not need."""


@dataclasses.dataclass(frozen=True)
class _Storage:
    """The numbers of one member of the archive."""

    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class _StorageType:
    """Stands for torch.FloatStorage and similar classes."""

    name: str

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError(f"it changes {self.name}")


class _Word:
    """Stands for a function of torch that a pickle may call.

    It is an instance, not a function: a pickle may set attributes of an object (BUILD), and this
    one has none.
    """

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError(f"it changes {type(self).__name__}")


class _RebuildTensor(_Word):
    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> np.ndarray:
        """Returns the tensor; `rest` is requires_grad, backward hooks and metadata."""
        del rest
        if not isinstance(storage, _Storage):
            raise _RefusedError("a tensor is made of something else than a storage")
        numbers = (offset, *size, *stride)
        if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in numbers):
            raise _RefusedError(f"a tensor has the sizes {size!r} and strides {stride!r}")
        values = storage.values
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) > values.size or (math.prod(size) and last >= values.size):
            raise _RefusedError(
                f"a tensor of shape {list(size)} reaches beyond its {values.size} stored numbers"
            )
        if not math.prod(size):
            return np.zeros(size, values.dtype)
        strides = [step * values.itemsize for step in stride]
        return np.lib.stride_tricks.as_strided(values[offset:], size, strides, writeable=False)


class _RebuildParameter(_Word):
    __slots__ = ()

    def __call__(self, data: Any, *rest: Any) -> Any:
        """Returns the tensor; `rest` is requires_grad and backward hooks."""
        del rest
        return data


class _Dict(dict):
    """An OrderedDict; torch adds the versions of its modules to it, which are ignored."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        del state


class _OrderedDict(_Word):
    __slots__ = ("_names",)

    def __init__(self):
        self._names = 0

    def __call__(self, *arguments: Any) -> _Dict:
        # Copies of one list in the pickle, again and again, would fill the memory.
        self._names += sum(len(argument) for argument in arguments)
        if self._names > MAX_NAMES:
            raise _RefusedError(f"its dicts have more than {MAX_NAMES:,} names")
        return _Dict(*arguments)


_WORDS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _RebuildTensor(),
    ("torch._utils", "_rebuild_tensor_v2"): _RebuildTensor(),
    ("torch._utils", "_rebuild_parameter"): _RebuildParameter(),
    **{("torch", name): _StorageType(name) for name in STORAGE_TYPES},
}


class _Unpickler(pickle.Unpickler):
    """Reads the tensors of an archive and nothing else."""

    def __init__(self, pickled: bytes, archive: zipfile.ZipFile, folder: str):
        super().__init__(io.BytesIO(pickled))
        self._archive, self._folder = archive, folder
        self._storages: dict[str, _Storage] = {}
        self._ordered_dict = _OrderedDict()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return self._ordered_dict
        if (module, name) not in _WORDS:
            raise _RefusedError(f"it asks for {module}.{name}, which no weights need")
        return _WORDS[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        match pid:
            case ("storage", _StorageType(name), str(key), _, int(count)):
                if key not in self._storages:
                    self._storages[key] = self._read(key, np.dtype(STORAGE_TYPES[name]), count)
                return self._storages[key]
        raise _RefusedError(f"it refers to {str(pid)[:80]}, which is not a tensor storage")

    def _read(self, key: str, dtype: np.dtype, count: int) -> _Storage:
        member = f"{self._folder}data/{key}"
        if member not in self._archive.NameToInfo:
            raise _RefusedError(f"{member} is missing in it")
        size = self._archive.getinfo(member).file_size
        if size != (needed := count * dtype.itemsize):
            fault = f"{member} has {size} bytes; {count} numbers of {dtype} have {needed}"
            raise _RefusedError(fault)
        return _Storage(np.frombuffer(self._archive.read(member), dtype))


def read_pickle(path: epath.PathLike) -> dict[str, np.ndarray]:
    """Returns the tensors of a file of `torch.save(model.state_dict())`, in the types stored.

    Nothing in the file is run. The arrays may share memory and are read-only.
    """
    path = epath.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(
                f"{path} is not a zip archive, as torch has written since version 1.6: it is cut "
                "short, or older; an older one, if you trust it, is rewritten by torch itself "
                "(`torch.save(torch.load(path), path)`)"
            )
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        try:
            with zipfile.ZipFile(file) as archive:
                _check_sizes(archive, size)
                loaded = _load(archive)
        except _RefusedError as error:
            raise ValueError(
                f"{path} is refused, and nothing in it was run: {error}. Ask its author for "
                "model.safetensors"
            ) from error
        except _DAMAGE as error:
            fault = f"{path} is damaged ({type(error).__name__}: {error}); fetch it again"
            raise ValueError(fault) from error
    return _tensors(loaded, path, size)


# Errors that zipfile, zlib, pickle and NumPy raise on files that are cut short or altered.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, pickle.UnpicklingError, ArithmeticError),
    *(AttributeError, EOFError, IndexError, KeyError, MemoryError, NotImplementedError, OSError),
    *(RuntimeError, TypeError, ValueError),
)


def _check_sizes(archive: zipfile.ZipFile, size: int) -> None:
    """Refuses an archive with members that declare more bytes than the file has."""
    for info in archive.infolist():
        if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size:
            raise _RefusedError(
                f"{info.filename[:80]} is compressed, {info.file_size:,} bytes in "
                f"{info.compress_size:,}; torch.save compresses nothing"
            )
    declared = sum(info.file_size for info in archive.infolist())
    if declared > size:
        raise _RefusedError(f"its members declare {declared:,} bytes; the file has {size:,}")


def _load(archive: zipfile.ZipFile) -> Any:
    pickles = [name for name in archive.NameToInfo if name.split("/")[1:] == ["data.pkl"]]
    if len(pickles) != 1:
        raise _RefusedError("it has no data.pkl, so torch.save did not write it")
    folder = pickles[0].removesuffix("data.pkl")
    if archive.getinfo(pickles[0]).file_size > MAX_PICKLE_BYTES:
        raise _RefusedError(f"its data.pkl has more than {MAX_PICKLE_BYTES} bytes")
    order = f"{folder}byteorder"
    if order in archive.NameToInfo and archive.read(order) != b"little":
        raise _RefusedError("its numbers are not in little-endian order")
    return _Unpickler(archive.read(pickles[0]), archive, folder).load()


def _tensors(loaded: Any, path: epath.Path, size: int) -> dict[str, np.ndarray]:
    if not isinstance(loaded, Mapping):
        raise ValueError(f"{path} holds a {type(loaded).__name__}; weights are a dict of tensors")
    faults = [
        f"{str(name)[:80]!r} is a {type(value).__name__}"
        for name, value in loaded.items()
        if not (isinstance(name, str) and isinstance(value, np.ndarray))
    ]
    if faults:
        raise ValueError(f"{path} holds more than tensors by name:\n  " + "\n  ".join(faults))
    used = sum(tensor.nbytes for tensor in loaded.values())
    if used > MAX_USES * size:
        raise ValueError(
            f"{path} is refused: its {len(loaded)} tensors have {used:,} bytes, and the file "
            f"{size:,}; each number would be used {used // size} times. Ask its author for "
            "model.safetensors"
        )
    return dict(loaded)
