"""The one place that creates, replaces and removes files and folders.

A file appears whole: it is written to a draft beside it, flushed to disk and renamed. Drafts have random
names that begin with `MARK`, and are locked while their process lives. Whoever writes into a folder removes
the drafts there of processes that are gone, and nothing else.

`within` is a folder that may come from somebody else, such as that of a run: below it no link is followed.
Without `within`, the user has named the path, and its links are followed.
"""

from __future__ import annotations

import errno
import io
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows, where leftovers stay
    flock = None  # type: ignore[assignment]

MARK = ".pathaware-"
_DRAFT = re.compile(re.escape(MARK) + "[0-9a-f]{16}")
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_PLAIN = _NOFOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_RELATIVE = os.open in os.supports_dir_fd  # not on Windows, where links take a privilege to create


class Locked(Exception):
    """Another process holds a lock."""


class Lock:
    """An exclusive lock, held until it is released or its process ends, however it ends."""

    def __init__(self, path: Path, wait: float = 0.0) -> None:
        """Raise `Locked` if another process holds it for longer than `wait` seconds."""
        self._lock = FileLock(path, timeout=wait, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise Locked(str(path)) from None

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock and remove its file; whoever waits notices that the file is gone."""
        if self._lock.is_locked:
            with suppress(OSError):  # Windows removes the file after its release
                os.unlink(self._lock.lock_file)
            self._lock.release()


def beside(folder: Path, what: str) -> Path:
    """A hidden name beside a folder that is replaced as a whole: its `lock`, `partial` or `old` folder."""
    return folder.parent / f".{folder.name}{MARK}{what}"


def replace_file(
    path: Path, content: str | bytes, within: Path | None = None, *, durable: bool = True
) -> None:
    """Write a file atomically: a crash or a full disk leaves the old file or the new one, never half.

    If it cannot be written, the `OSError` names the file. Power cuts may take a file that is not `durable`.
    """
    data = content.encode() if isinstance(content, str) else content
    with _place(path, within) as (name, folder):
        if within is None and path.exists() and not path.is_file():  # a pipe or a device is not replaced
            with open(os.open(name, os.O_WRONLY, dir_fd=folder), "wb") as file:
                file.write(data)
            return
        draft, descriptor = _new_draft(name, folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(descriptor)
                if folder is not None:  # while the draft is locked
                    os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            if folder is None:
                os.replace(draft, name)
            elif durable:
                os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise


def open_to_write(path: Path, within: Path, mode: str = "wb") -> io.FileIO:
    """Open a plain file `within` a folder, by default an empty one; "ab" and "a+b" append."""
    access = os.O_RDWR if "+" in mode else os.O_WRONLY
    with _place(path, within) as (name, folder):
        descriptor = os.open(name, access | os.O_APPEND | os.O_CREAT | _PLAIN, 0o666, dir_fd=folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.ELOOP, "")
        if mode == "wb":
            os.ftruncate(descriptor, 0)
        return io.FileIO(descriptor, mode)


def make_folder(path: Path, within: Path | None = None, *, new: bool = False) -> None:
    """Create a folder and those above it, if they are not there; that is an error if it must be `new`."""
    if within is None:
        path.mkdir(parents=not new, exist_ok=not new)
    else:
        with _place(path / "x", within, make=True):
            pass


def remove_file(path: Path, within: Path) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError), _place(path, within) as (name, folder):
        os.unlink(name, dir_fd=folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder that this process has made, with all that is in it."""
    shutil.rmtree(folder, ignore_errors=True)


def move(source: Path, target: Path, within: Path) -> None:
    """Rename a file or folder; the target's folder is made, and the source's goes if it is empty."""
    with _place(target, within, make=True) as (after, there), _place(source, within) as (before, here):
        os.replace(before, after, src_dir_fd=here, dst_dir_fd=there)
    if source.parent != within:
        with suppress(OSError):
            source.parent.rmdir()


def new_copy(path: Path, content: bytes, like: Path | None) -> None:
    """Write a new file, with the times and permissions of another one where the disk keeps them."""
    with path.open("xb") as file:
        file.write(content)
    if like is not None:
        with suppress(OSError):
            shutil.copystat(like, path)


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """A new folder in `parent`, which is removed at the end unless it was moved to its place."""
    with _place(parent.absolute() / "x", None) as (name, folder):
        draft, descriptor = _new_draft(name, folder, is_folder=True)
    path = parent / Path(draft).name
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def replace_folder(draft: Path, folder: Path) -> None:
    """Move a complete folder to its place; one that is there is replaced, or put back if that fails.

    The caller holds the lock `beside` the folder.
    """
    old = beside(folder, "old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)  # between these two lines, `restore_folder` finds the old one
    try:
        os.rename(draft, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def restore_folder(folder: Path) -> None:
    """Put a folder back whose replacement was killed between its two renames."""
    old = beside(folder, "old")
    if os.path.lexists(folder) or not old.is_dir():
        return
    # Not while a process replaces it, and not in a place that cannot be written.
    with suppress(OSError, Locked), Lock(beside(folder, "lock"), wait=10):
        if not os.path.lexists(folder):
            os.rename(old, folder)


def is_draft(path: Path) -> bool:
    """True for a draft, whose process may be gone."""
    return _DRAFT.fullmatch(path.name) is not None


@contextmanager
def _place(path: Path, within: Path | None, *, make: bool = False) -> Iterator[tuple[str, int | None]]:
    """The name of a file, and the descriptor of its folder, to which the name is relative.

    Without descriptors the name is the whole path. With `make`, folders below `within` are created.
    """
    given, descriptor = path, None
    if within is None:
        path = Path(os.path.realpath(path))
        within = path.parent
    try:
        if not _RELATIVE:
            if make:
                path.parent.mkdir(parents=True, exist_ok=True)
            yield str(path), None
            return
        descriptor = os.open(within, os.O_RDONLY | os.O_DIRECTORY)
        for part in path.relative_to(within).parts[:-1]:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=descriptor)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield path.name, descriptor
    except OSError as error:
        foreign = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
        reason = "a link or a special file, which is not followed" if foreign else error.strerror
        raise OSError(error.errno, reason, str(given)) from None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _new_draft(name: str, folder: int | None, *, is_folder: bool = False) -> tuple[str, int]:
    """The name and the locked descriptor of a new draft beside a file."""
    if folder is not None:
        _remove_leftovers(folder)
    while True:
        draft = os.path.join(os.path.dirname(name), f"{MARK}{secrets.token_hex(8)}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        if is_folder:
            os.mkdir(draft, dir_fd=folder)
            flags = os.O_RDONLY
            if folder is None:  # Windows cannot open folders
                return draft, -1
        descriptor = os.open(draft, flags | _PLAIN, 0o666, dir_fd=folder)
        if folder is None:
            return draft, descriptor
        with suppress(OSError):  # a disk without locks, where leftovers stay
            flock(descriptor, LOCK_EX)
        with suppress(FileNotFoundError):
            there = os.stat(draft, dir_fd=folder, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(descriptor)):
                return draft, descriptor
        os.close(descriptor)  # it was removed as a leftover before it was locked


def _remove_leftovers(folder: int) -> None:
    """Remove the drafts of processes that are gone, whose locks are free."""
    for name in filter(_DRAFT.fullmatch, os.listdir(folder)):
        with suppress(OSError):
            descriptor = os.open(name, os.O_RDONLY | _PLAIN, dir_fd=folder)
            try:
                flock(descriptor, LOCK_EX | LOCK_NB)
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)
                else:
                    os.unlink(name, dir_fd=folder)
            finally:
                os.close(descriptor)
