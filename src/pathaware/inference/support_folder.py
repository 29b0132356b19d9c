"""A support set in a folder that can be edited and undone.

The folder has one folder of images per class, as `read_support` reads it, so every command takes it. Beside
them, `history.jsonl` has one line per edit, and the hidden folder `.removed` keeps images that were removed.
Every edit moves files within the folder, and undoing it moves them back. Learning from the folder gives the
same network, to the last bit, as learning from a new folder with the same images and labels: the order of
images, their names and the edits before have no effect.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath

import numpy as np
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.writing import make_folder, move, replace_file
from pathaware.data.importers.folder import IMAGE_SUFFIXES
from pathaware.data.importers.trees import MAX_FILE
from pathaware.data.pixels import BadImage, ImageFormat, ImageInput, ImageLike, decode
from pathaware.inference.class_folders import folder_name, free_name, read_support
from pathaware.inference.trained_model import SupportSet

HISTORY, REMOVED = "history.jsonl", ".removed"

Moves = list[tuple[str, str]]
"""Names of files in the folder, before and after an edit."""


class SupportFolder:
    """Labelled images in a folder, with edits that can be undone.

    >>> import tempfile
    >>> from pathaware.data import open_store
    >>> glyphs = open_store("glyphs").images
    >>> folder = SupportFolder(Path(tempfile.mkdtemp()) / "letters")
    >>> names = [folder.add(label, image) for label, image in zip("aab", glyphs[[0, 1, 20]])]
    >>> folder.rename("a", "alpha")
    >>> folder.correct(folder.images()["alpha"][0], "b")
    >>> {label: len(images) for label, images in folder.images().items()}
    {'alpha': 1, 'b': 2}
    >>> folder.undo(), {label: len(images) for label, images in folder.images().items()}
    ('correct', {'alpha': 2, 'b': 1})
    """

    def __init__(self, folder: str | Path) -> None:
        """Open a folder, or create it. Any folder with one folder of images per class will do."""
        self.folder = Path(folder)
        try:
            make_folder(self.folder)
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder} cannot be created ({error})", field="support") from None

    def images(self) -> dict[str, list[str]]:
        """The names of the images of every class, such as `letters/one.png`."""
        found = {}
        for folder in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            members = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_SUFFIXES]
            if members and not folder.name.startswith("."):
                found[folder.name] = [f"{folder.name}/{path.name}" for path in members]
        return found

    def support_set(self, image_input: ImageInput) -> SupportSet:
        """Read the images for a trained model."""
        return read_support(self.folder, image_input)

    def add(self, label: str, image: ImageLike) -> str:
        """Add an image to a class, which may be new, and return its name."""
        content, name = _file(image)
        new = self._free(f"{folder_name(label)}/{name}")
        hidden = self._free(f"{REMOVED}/{name}")
        make_folder(self.folder / REMOVED, self.folder)
        replace_file(self.folder / hidden, content, self.folder)
        self._edit("add", [(hidden, new)])
        return new

    def remove(self, name: str) -> None:
        """Remove an image."""
        self._edit("remove", [(self._known(name), self._free(f"{REMOVED}/{PurePosixPath(name).name}"))])

    def remove_class(self, label: str) -> None:
        """Remove a class with all of its images."""
        self._edit("remove class", self._moves(self._members(label), REMOVED))

    def rename(self, label: str, to: str) -> None:
        """Rename a class."""
        members = self._members(label)
        if to in self.images():
            raise UsageError(f"there is a class {to!r} already", field="to")
        self._edit("rename", self._moves(members, folder_name(to)))

    def correct(self, name: str, label: str) -> None:
        """Give an image another label."""
        self._edit("correct", self._moves([self._known(name)], folder_name(label)))

    def undo(self) -> str | None:
        """Undo the last edit that is not undone yet; return what it was, or None if there is none."""
        edits = self.history()
        if not edits:
            return None
        what, moves = edits[-1]
        self._move([(after, before) for before, after in reversed(moves)])
        self._write(edits[:-1])
        return what

    def history(self) -> list[tuple[str, Moves]]:
        """All edits, the oldest first: what was done, and which files it moved."""
        path = self.folder / HISTORY
        try:
            lines = read_file(path).decode().splitlines() if path.exists() else []
            edits = [json.loads(line) for line in lines]
            return [(edit["edit"], [(before, after) for before, after in edit["moves"]]) for edit in edits]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path} is damaged; remove it to go on without it", field="support") from None

    def _edit(self, what: str, moves: Moves) -> None:
        edits = self.history()
        self._move(moves)
        self._write([*edits, (what, moves)])

    def _write(self, edits: Sequence[tuple[str, Moves]]) -> None:
        lines = [
            json.dumps({"edit": what, "moves": moves}, ensure_ascii=False) + "\n" for what, moves in edits
        ]
        replace_file(self.folder / HISTORY, "".join(lines), self.folder)

    def _move(self, moves: Moves) -> None:
        for before, after in moves:
            try:
                move(self.folder / before, self.folder / after, self.folder)
            except OSError as error:
                message = f"{self.folder / before} cannot be moved ({error.strerror})"
                raise UsageError(message, field="support") from None

    def _moves(self, names: Sequence[str], folder: str) -> Moves:
        return [(name, self._free(f"{folder}/{PurePosixPath(name).name}")) for name in names]

    def _free(self, name: str) -> str:
        return free_name(self.folder, name)

    def _known(self, name: str) -> str:
        if not any(name in members for members in self.images().values()):
            raise UsageError(f"{self.folder} has no image {name}", field="name")
        return name

    def _members(self, label: str) -> list[str]:
        found = self.images().get(label)
        if not found:
            raise UsageError(f"{self.folder} has no class {label!r}", field="label")
        return found


def _file(image: ImageLike) -> tuple[bytes, str]:
    """The content and the name of an image file; arrays, tensors and PIL images become PNG files."""
    from PIL import Image

    if isinstance(image, (str, os.PathLike)):
        path = Path(image)
        if path.suffix.lower() in IMAGE_SUFFIXES:
            content = read_file(path, MAX_FILE)
            _check(content)
            return content, path.name.lstrip(".")
        image = read_file(path, MAX_FILE)
    if isinstance(image, bytes):
        _check(image)
        image = Image.open(BytesIO(image))
    if not isinstance(image, Image.Image):
        pixels = np.asarray(image.cpu() if isinstance(image, Tensor) else image)
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
            pixels = pixels.transpose(1, 2, 0)
        image = Image.fromarray(pixels[..., 0] if pixels.shape[-1:] == (1,) else pixels)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue(), f"{hashlib.sha256(file.getvalue()).hexdigest()[:12]}.png"


def _check(content: bytes) -> None:
    try:
        decode(content, ImageFormat(8, 3))
    except BadImage as error:
        raise UsageError(str(error), field="image") from None
