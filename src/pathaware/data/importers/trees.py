"""A common interface to folders, zip and tar files: names of files and their bytes, without unpacking."""

from __future__ import annotations

import os
import tarfile
import threading
import weakref
import zipfile
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from pathaware.core.errors import UsageError

# Larger than any image file; a small archive member that expands to more must not fill the memory.
MAX_FILE = 256 * 2**20
_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "__macosx"}


class Tree(Protocol):
    """Files by their `/`-separated names, sorted, without hidden and system files."""

    @property
    def names(self) -> list[str]: ...

    def open(self, name: str) -> IO[bytes]: ...

    def label(self, name: str) -> str:
        """Return the name of this file in messages."""
        ...


def read(tree: Tree, name: str) -> bytes:
    """Read a file of at most `MAX_FILE` bytes."""
    with tree.open(name) as file:
        content = file.read(MAX_FILE + 1)
    if len(content) > MAX_FILE:
        raise UsageError(f"more than the {MAX_FILE:,} bytes allowed for one file")
    return content


def open_tree(source: Path) -> Tree:
    """Open a folder, a zip or a tar."""
    if source.is_dir():
        return FolderTree(source)
    if not source.is_file():
        raise UsageError(f"{source}: no such file or folder")
    if zipfile.is_zipfile(source):
        return ZipTree(source)
    if tarfile.is_tarfile(source):
        return TarTree(source)
    raise UsageError(f"{source}: must be a folder, a .zip, a .tar or a .tar.gz")


class FolderTree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(_walk(root))

    def open(self, name: str) -> IO[bytes]:
        return (self.root / name).open("rb")

    def label(self, name: str) -> str:
        return str(self.root / name)


class ZipTree:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._zip = zipfile.ZipFile(path)
        self.names = _safe(path, [i.filename for i in self._zip.infolist() if not i.is_dir()])

    def open(self, name: str) -> IO[bytes]:
        return self._zip.open(name)

    def label(self, name: str) -> str:
        return f"{self.path}:{name}"


class TarTree:
    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept open while members may be read; unlike a zip file, a tar file does not close itself.
        self._tar = tarfile.open(path)  # noqa: SIM115
        weakref.finalize(self, self._tar.close)
        self._members = {m.name: m for m in self._tar.getmembers() if m.isfile()}
        self._lock = threading.Lock()
        self.names = _safe(path, self._members)

    def open(self, name: str) -> IO[bytes]:
        # Members share one file position, so a thread reads a whole member under the lock.
        with self._lock:
            member = self._tar.extractfile(self._members[name])
            assert member is not None  # a regular file, see __init__
            return BytesIO(member.read())

    def label(self, name: str) -> str:
        return f"{self.path}:{name}"


def _walk(root: Path) -> list[str]:
    found, seen = [], set()
    for folder, subfolders, files in os.walk(root, followlinks=True):
        # Class folders are often links; a link to a parent must not cause an endless loop.
        if (real := os.path.realpath(folder)) in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = [s for s in subfolders if _visible(s)]
        here = Path(folder).relative_to(root)
        found += [(here / f).as_posix() for f in files if _visible(f)]
    return found


def _safe(archive: Path, names: Iterable[str]) -> list[str]:
    """Refuse archives with members outside of them. Nothing is unpacked, but such a file is malicious."""
    names = list(names)
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            raise UsageError(f"{archive}: refused, its member {name!r} points outside the archive")
    return sorted(n for n in names if all(map(_visible, PurePosixPath(n).parts)))


def _visible(part: str) -> bool:
    return not part.startswith(".") and part.lower() not in _SYSTEM_FILES
