"""One process at a time works in a folder."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from pathaware.errors import UsageError

LOCK = "run.lock"


class FolderLock:
    """Held until it is released or its process ends, however it ends; a second one meets the `refusal`."""

    def __init__(self, folder: Path, refusal: str) -> None:
        self.path = folder / LOCK
        try:
            self.file = self.path.open("w")
        except OSError as error:
            raise UsageError(f"{folder} cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held the lock before may have removed this very file in between.
            held = os.fstat(self.file.fileno()).st_ino == self.path.stat().st_ino
        except OSError:
            held = False
        if not held:
            self.file.close()
            raise UsageError(refusal)

    def release(self) -> None:
        with suppress(OSError):  # the folder may be gone or read-only by now; the lock is the open file's
            self.path.unlink()
        self.file.close()
