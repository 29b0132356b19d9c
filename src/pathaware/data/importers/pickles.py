"""Read pickles of arrays, lists and dicts without executing any code in them."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict, defaultdict
from typing import IO, Any

import numpy as np

from pathaware.core.errors import UsageError
from pathaware.data.importers.trees import Tree


def _encode(text: str, encoding: str = "latin1") -> bytes:
    # Python 3 writes bytes this way in old protocols; data files need no other codec.
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


# numpy moved these between modules; taken from an array, they are right in every version.
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
        # numpy arrays pickled by Python 2 need latin1; their text is ASCII anyway.
        super().__init__(file, encoding="latin1")
        self._label = label

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _PERMITTED[module, name]
        except KeyError:
            raise UsageError(
                f"{self._label}: refused, this pickle asks for {module}.{name}; only plain arrays are allowed"
            ) from None

    def persistent_load(self, pid: Any) -> Any:
        raise UsageError(f"{self._label}: refused, this pickle refers to objects outside itself")


def unpickle(file: IO[bytes], label: str) -> Any:
    """Load a pickle that may contain arrays and containers only; `label` names it in errors."""
    try:
        return _ArraysOnly(file, label).load()
    except UsageError:
        raise
    # Damaged pickles raise many kinds of exceptions (EOFError, IndexError, MemoryError, …).
    except Exception as error:
        raise UsageError(f"{label}: not a readable pickle ({error or type(error).__name__})") from None


def text_keys(document: Any, label: str) -> dict[str, Any]:
    """Return a dict with text keys, whether Python 2 or 3 wrote it."""
    if not isinstance(document, dict):
        raise UsageError(f"{label}: contains a {type(document).__name__}, not a dict")
    return {as_text(key): value for key, value in document.items()}


def as_text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def read_pickle(tree: Tree, name: str, missing: str = "") -> Any:
    """Load a pickle of a tree; `missing` is what an error says if it is not there."""
    label = tree.label(name)
    if missing and name not in tree.names:
        raise UsageError(f"{label}: missing; {missing}")
    with tree.open(name) as file:
        return unpickle(file, label)


class PickleReader:
    """Reads the pickles of a tree, keeping one in memory at a time: the largest take gigabytes."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._lock = threading.Lock()
        self._name: str | None = None
        self._content: Any = None

    def load(self, name: str) -> Any:
        with self._lock:
            if self._name != name:
                self._content = None  # free the previous one first
                self._name = None
                self._content = read_pickle(self.tree, name)
                self._name = name
            return self._content
