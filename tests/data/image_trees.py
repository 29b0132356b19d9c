"""Small copies of the layouts, made on the spot."""

from __future__ import annotations

import pickle
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pathaware.data.importers.source import class_lists


def pixels(seed: int, size: int = 8) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def encoded(seed: int, size: int = 8, kind: str = "PNG") -> bytes:
    file = BytesIO()
    Image.fromarray(pixels(seed, size)).save(file, kind)
    return file.getvalue()


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def class_folder(folder: Path, images: int, size: int = 8, first: int = 0) -> None:
    for seed in range(first, first + images):
        write(folder / f"{seed:04d}.png", encoded(seed, size))


def official_folders(root: Path, lists: str, images: int, under: str = "") -> Path:
    """Every class of a published set, all with the same few images."""
    drawn = [encoded(seed) for seed in range(images)]
    for names in class_lists(lists).values():
        for name in names:
            for number, content in enumerate(drawn):
                write(root / under / name / f"{number:04d}.png", content)
    return root


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def python2_pickle(document: Any) -> bytes:
    """A protocol-2 pickle whose byte strings are Python 2 strings, as in the original CIFAR files."""

    class Old(pickle._Pickler):  # type: ignore[name-defined,misc]
        dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

        def save_string(self, value: bytes) -> None:
            self.write(pickle.BINSTRING + len(value).to_bytes(4, "little") + value)

        dispatch[bytes] = save_string

    file = BytesIO()
    Old(file, protocol=2).dump(document)
    return file.getvalue()


class Runs:
    """Pickles to something that would make the file `proof` if it were ever loaded the ordinary way."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, (f"touch '{self.proof}'",)
