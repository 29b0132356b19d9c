"""Read pickles of arrays, lists and dicts without running anything they ask for."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict, defaultdict
from typing import IO, Any

import numpy as np

from pathaware.data.importers.trees import Tree
from pathaware.core.errors import UsageError


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # How Python 3 writes bytes into old protocols; other codecs have no business in a data file.
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


# numpy moved these between modules; what an array itself pickles to is right for every version.
_ARRAY: Any = np.zeros(0).__reduce__()[0]
_SCALAR: Any = np.float64(0).__reduce__()[0]
_FROM_BUFFER: Any = np.zeros(1).__reduce_ex__(5)[0]

_PERMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _ARRAY for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _SCALAR for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FROM_BUFFER for core in ("core", "_core")},
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    **{(module, t.__name__): t for module in ("builtins", "__builtin__") for t in (list, dict, set, int)},
}


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, file: IO[bytes], label: str) -> None:
        # latin1 is how numpy arrays pickled by Python 2 are read; their text is ASCII either way.
        super().__init__(file, encoding="latin1")
        self._label = label

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _PERMITTED[module, name]
        except KeyError:
            raise UsageError(
                f"{self._label}: refused, this pickle asks for {module}.{name}; only plain arrays are read"
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise UsageError(f"{self._label}: refused, this pickle refers to objects outside itself")


def unpickle(file: IO[bytes], label: str) -> Any:
    try:
        return _ArraysOnly(file, label).load()
    except UsageError:
        raise
    # CorruptFile pickles fail in many ways (EOFError, IndexError, MemoryError…); all mean the same to the user.
    except Exception as error:
        raise UsageError(f"{label}: not a readable pickle ({error or type(error).__name__})") from None


def text_keys(document: Any, label: str) -> dict[str, Any]:
    """A dict with its keys as text, whichever Python wrote it."""
    if not isinstance(document, dict):
        raise UsageError(f"{label}: holds a {type(document).__name__}, a dict expected")
    return {as_text(key): value for key, value in document.items()}


def as_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


class Shelf:
    """The pickles of one tree, at most one of them in memory: the largest take gigabytes."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._lock = threading.Lock()
        self._name: str | None = None
        self._content: Any = None

    def load(self, name: str) -> Any:
        with self._lock:
            if self._name != name:
                self._content = None  # let go of the last one first
                self._name = None
                with self.tree.open(name) as file:
                    self._content = unpickle(file, self.tree.label(name))
                self._name = name
            return self._content
