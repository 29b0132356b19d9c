"""A common interface to folders, zip and tar files: names of files and their bytes, without unpacking.

Archives come from strangers. Every way in which one can be damaged or hostile ends in a `UsageError` of one
line that names the archive and, where there is one, the member.
"""

from __future__ import annotations

import os
import stat
import tarfile
import threading
import weakref
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, TypeVar

from pathaware.core.errors import UsageError, printable

# Larger than any image file; a small archive member that expands to more must not fill the memory.
MAX_FILE = 256 * 2**20
# Pickled data sets are members of gigabytes.
MAX_MEMBER = 32 * 2**30
MAX_MEMBERS = 5_000_000
# Image files hardly compress; a listing must not unpack a thousand times what is on the disk.
MAX_RATIO, FREE_BYTES = 100, 2**30
_SYSTEM_FILES = {"thumbs.db", "desktop.ini", "__macosx"}

Member = TypeVar("Member")


class Tree(Protocol):
    """Files by their `/`-separated names, sorted, without hidden and system files."""

    @property
    def names(self) -> list[str]: ...

    def open(self, name: str, limit: int = MAX_MEMBER) -> IO[bytes]:
        """Open a file; raise a `UsageError` that names it if that fails or it has more than `limit` bytes."""
        ...

    def label(self, name: str) -> str:
        """Return the name of this file in messages."""
        ...


def read(tree: Tree, name: str) -> bytes:
    """Read a file of at most `MAX_FILE` bytes; raise a `UsageError` that names it if this is impossible."""
    with tree.open(name, MAX_FILE) as file, _refusals(tree.label(name)):
        content = file.read(MAX_FILE + 1)
    _check_size(tree.label(name), len(content), MAX_FILE)  # a zip file may understate the size
    return content


def open_tree(source: Path, others: str = "") -> Tree:
    """Open a folder, a zip or a tar; `others` is what the caller accepts as well, for the message."""
    if source.is_dir():
        with _refusals(str(source)):
            return FolderTree(source)
    if not source.is_file():
        raise UsageError(f"{source}: no such file or folder")
    with _refusals(str(source)):
        if zipfile.is_zipfile(source):
            return ZipTree(source)
        if tarfile.is_tarfile(source):
            return TarTree(source)
    raise UsageError(f"{source}: must be {others}a folder, a .zip, a .tar or a .tar.gz")


class FolderTree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(_walk(root))
        for name in self.names:
            _check_encoding(root, name)

    def open(self, name: str, limit: int = MAX_MEMBER) -> IO[bytes]:
        path = self.root / name
        with _refusals(str(path)):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):  # opening a named pipe would wait forever
                raise UsageError(f"{path}: not a regular file")
            _check_size(str(path), status.st_size, limit)
            return path.open("rb")

    def label(self, name: str) -> str:
        return str(self.root / name)


class ZipTree:
    def __init__(self, path: Path) -> None:
        self.path = path
        with _refusals(str(path)):
            self._zip = zipfile.ZipFile(path)
            self._members = _by_name(path, ((i.filename, i) for i in self._zip.infolist() if not i.is_dir()))
        self.names = _listed(self._members)

    def open(self, name: str, limit: int = MAX_MEMBER) -> IO[bytes]:
        member = self._members[name]
        with _refusals(self.label(name)):
            if member.flag_bits & 1:
                raise UsageError(f"{self.label(name)}: encrypted; unpack the archive with its password first")
            _check_size(self.label(name), member.file_size, limit)
            return self._zip.open(member)

    def label(self, name: str) -> str:
        return f"{self.path}:{name}"


class TarTree:
    def __init__(self, path: Path) -> None:
        self.path = path
        with _refusals(str(path)):
            # Kept open while members may be read; unlike a zip file, a tar file does not close itself.
            self._tar = tarfile.open(path)  # noqa: SIM115
            weakref.finalize(self, self._tar.close)
            limit = MAX_RATIO * path.stat().st_size + FREE_BYTES
            self._members = _by_name(path, _files_of(self._tar, path, limit))
        self._lock = threading.Lock()
        self.names = _listed(self._members)

    def open(self, name: str, limit: int = MAX_MEMBER) -> IO[bytes]:
        # Members share one file position, so a thread reads a whole member under the lock.
        with self._lock, _refusals(self.label(name)):
            member = self._members[name]
            _check_size(self.label(name), member.size, limit)
            file = self._tar.extractfile(member)
            assert file is not None  # a regular file, see _files_of
            content = file.read()
            if len(content) < member.size:
                raise UsageError(f"{self.label(name)}: cannot be read (the archive is cut short)")
            return BytesIO(content)

    def label(self, name: str) -> str:
        return f"{self.path}:{name}"


@contextmanager
def _refusals(label: str) -> Iterator[None]:
    """Turn every error of reading a file or archive into a `UsageError` that names it.

    For damaged input zipfile and tarfile raise more than a dozen types: EOFError, struct.error, zlib.error,
    NotImplementedError, MemoryError, UnicodeDecodeError and others.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{label}: cannot be read ({reason or type(error).__name__})") from None


def _check_size(label: str, size: int, limit: int) -> None:
    if not 0 <= size <= limit:
        raise UsageError(f"{label}: more than the {limit:,} bytes allowed for one file")


def _files_of(tar: tarfile.TarFile, path: Path, limit: int) -> Iterator[tuple[str, tarfile.TarInfo]]:
    for member in tar:
        if member.offset_data > limit:
            raise UsageError(f"{path}: refused, it unpacks to more than {MAX_RATIO} times its size")
        if member.isfile():
            yield member.name, member
    # tarfile takes a header that is damaged or cut short for the end of the archive.
    file = tar.fileobj
    assert file is not None  # open for reading
    file.seek(tar.offset)
    if any(file.read(tarfile.BLOCKSIZE)):
        raise UsageError(f"{path}: cannot be read (damaged or cut short after {tar.offset:,} bytes)")


def _by_name(archive: Path, members: Iterable[tuple[str, Member]]) -> dict[str, Member]:
    """Return members by clean name; of several with the same name, the last, as unpacking would leave it.

    Nothing is unpacked, but an archive with members outside of it is malicious and refused.
    """
    found: dict[str, Member] = {}
    for name, member in members:
        # Archives made on Windows may separate folders by backslashes; `tar c .` starts names with `./`.
        path = PurePosixPath(name.replace("\\", "/"))
        if not path.parts:
            raise UsageError(f"{archive}: refused, it has a member without a name ({name!r})")
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            raise UsageError(f"{archive}: refused, its member {name!r} points outside the archive")
        _check_encoding(archive, str(path))
        found[str(path)] = member
        if len(found) > MAX_MEMBERS:
            raise UsageError(f"{archive}: refused, it has more than {MAX_MEMBERS:,} members")
    return found


def _check_encoding(source: Path, name: str) -> None:
    """Refuse names that cannot be written as UTF-8: class names go into JSON files and messages."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{source}: the name {printable(name)!r} is not valid UTF-8; rename it") from None


def _listed(members: Mapping[str, object]) -> list[str]:
    return sorted(n for n in members if all(map(_visible, PurePosixPath(n).parts)))


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


def _visible(part: str) -> bool:
    return not part.startswith(".") and part.lower() not in _SYSTEM_FILES
