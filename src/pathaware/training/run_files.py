"""The files of a training: configuration, metrics and states, and the lock that excludes other processes."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, Self

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.reading import read_file, read_json
from pathaware.core.writing import (
    Lock,
    Locked,
    is_draft,
    make_folder,
    open_to_write,
    remove_file,
    replace_file,
)
from pathaware.training.checksummed import CHECKPOINT, CorruptFile
from pathaware.training.config import read_toml_file
from pathaware.training.progress import Progress
from pathaware.training.state import State

CONFIG, METRICS = "config.toml", "metrics.jsonl"
PROVENANCE, LOCK, HISTOGRAMS = "provenance.json", "run.lock", "histograms.safetensors"
KEPT = 2
"""Number of states kept: if the last one is corrupt, the one before it is used."""

Note = Callable[[str], None]
"""Called with a line about a file that was repaired or skipped."""


def _ignore(line: str) -> None: ...


def neighbours(folder: Path) -> list[str]:
    """The run folders beside a folder, for suggestions."""
    try:
        return [str(path.parent) for path in sorted(folder.parent.glob(f"*/{CONFIG}"))]
    except OSError:
        return []


class FolderInUse(UsageError):
    """Another process holds the lock of a folder."""


class FolderLock(Lock):
    """An exclusive lock on a folder, held until it is released or its process ends, however it ends.

    If another process holds it, `FolderInUse(refusal, field)` is raised.
    """

    def __init__(self, folder: Path, refusal: str, field: str | None = None) -> None:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder", field)
        try:
            super().__init__(folder / LOCK)
        except Locked:
            raise FolderInUse(refusal, field) from None
        except OSError as error:
            raise UsageError(f"{folder} cannot be written ({error.strerror})", field) from None


class RunFolder(ABC):
    """The folder of a training: metrics, provenance and states."""

    iterations: int  # or epochs, of the whole training

    def __init__(self, folder: Path, settings: Any) -> None:
        self.folder = folder
        self.created = False
        """True in the process that created the folder."""

    @abstractmethod
    def differences(self, settings: dict[str, Any]) -> str:
        """How these settings differ from those of the folder; empty if they do not."""

    def refuse_another(self, settings: dict[str, Any], path: Path) -> None:
        """Raise if a file was made with settings other than those of the folder."""
        if found := self.differences(settings):
            raise UsageError(
                f"{self.folder / CONFIG} is not what {path.name} was made with: {found}", field="run"
            )

    @classmethod
    def create(cls, folder: Path, settings: Any) -> Self:
        """Write settings to a new or empty folder; raise `UsageError` if the folder has files."""
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder", field="out")
        try:
            make_folder(folder)
            if not all(map(_is_leftover, folder.iterdir())):
                what = "holds another run" if (folder / CONFIG).exists() else "is not empty"
                raise UsageError(f"{folder} {what}; name a new folder or remove it", field="out")
            replace_file(folder / CONFIG, settings.to_toml(), folder)
        except OSError as error:
            raise UsageError(f"{folder} cannot be written ({error.strerror})", field="out") from None
        run = cls(folder, settings)
        run.created = True
        return run

    def remove_untrained(self) -> None:
        """Remove the folder of a run that this process created and could not begin to train."""
        if self.created and not (self.folder / METRICS).exists() and not self._states():
            for name in (CONFIG, PROVENANCE):
                remove_file(self.folder / name, self.folder)
            with suppress(OSError):  # not empty
                self.folder.rmdir()

    def append(self, progress: Progress) -> None:
        """Append a log entry to `metrics.jsonl`."""
        with open_to_write(self.folder / METRICS, self.folder, "ab") as file:
            file.write(f"{json.dumps(asdict(progress))}\n".encode())

    def metrics(self, note: Note = _ignore) -> Iterator[dict[str, Any]]:
        """Iterate over the log entries, the dictionaries of `metrics.jsonl`.

        A last line that was cut off is dropped and reported to `note`; a damaged line before it is an error.
        """
        path = self.folder / METRICS
        try:
            lines = read_file(path).split(b"\n") if path.exists() else []
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror})", field="run") from None
        for number, line in enumerate(lines, 1):
            row, last = _parse_entry(line), number == len(lines)
            if row is not None:
                yield row
            elif not last:
                raise UsageError(f"{path} is damaged (line {number})", field="run")
            elif line:
                note(f"{path}: line {number} was cut off and is dropped")

    def drop_metrics_after(self, iteration: int, note: Note = _ignore) -> None:
        """Drop log entries after the iteration from which the run resumes, and a line that was cut off."""
        path = self.folder / METRICS
        if path.exists():
            kept = [row for row in self.metrics(note) if row["iteration"] <= iteration]
            replace_file(path, "".join(json.dumps(row) + "\n" for row in kept), self.folder)

    def provenance(self) -> list[dict[str, Any]]:
        """Commit, versions and device of each process that trained this run, in order; empty for old runs."""
        path = self.folder / PROVENANCE
        if not path.exists():
            return []
        try:
            return list(read_json(path, list[dict[str, Any]]))
        except UsageError as error:
            raise UsageError(f"{error.message}; remove it to continue without it", field="run") from None

    def add_provenance(self, entry: dict[str, Any]) -> None:
        """Append an entry to `provenance.json`."""
        text = json.dumps([*self.provenance(), entry], indent=1) + "\n"
        replace_file(self.folder / PROVENANCE, text, self.folder)

    def save_state(self, state: State) -> None:
        """Write a state to resume from, and remove all but the last two."""
        state.write(self.folder / f"state-{state.iteration}.safetensors")
        for old in self._states()[KEPT:]:
            remove_file(old, self.folder)

    def _states(self) -> list[Path]:
        """The files of states, newest first."""
        return numbered_files(self.folder, "state")[::-1]

    def state(self, note: Note = _ignore) -> State | None:
        """The last saved state; None if there is none or the run is finished.

        A corrupt state is reported to `note`, and the one before it is used.
        """
        found = self._states()
        for path in found:
            try:
                state = State.read(path)
            except CorruptFile as error:
                note(f"{path} is damaged ({error}) and is skipped")
                continue
            self.refuse_another(state.config, path)
            return state
        if found:
            raise UsageError(
                f"no state in {self.folder} can be read; start again in a new folder", field="run"
            )
        return None

    def remove_states(self) -> None:
        """Remove the saved states of a finished run."""
        for path in self._states():
            remove_file(path, self.folder)

    def tidy(self) -> None:
        """Remove what a process left that was killed after its last iteration: states and its lock."""
        with suppress(UsageError, OSError), FolderLock(self.folder, ""):
            self.remove_states()

    @property
    def finished(self) -> bool:
        """True if training is complete."""
        last = max((row["iteration"] for row in self.metrics()), default=0)
        return last == self.iterations and (self.folder / CHECKPOINT).exists()


def numbered_files(folder: Path, kind: str) -> list[Path]:
    """The files of states or snapshots in a folder, in the order of their iterations."""
    pattern = re.compile(rf"{kind}-(\d{{1,18}})\.safetensors", re.ASCII)
    found = {int(match[1]): path for path in folder.iterdir() if (match := pattern.fullmatch(path.name))}
    return [found[number] for number in sorted(found)]


def must_exist(folder: Path, field: str) -> None:
    """Raise if there is no such folder."""
    if not _exists(folder):
        raise UsageError(f"{folder}: no such folder{_hint(folder)}", field=field)


def _hint(folder: Path) -> str:
    return did_you_mean(str(folder), neighbours(folder))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def read_run_tables(folder: Path) -> dict[str, Any]:
    """The tables of `config.toml` in a run folder."""
    if not _exists(folder / CONFIG):
        raise UsageError(f"{folder} is not a run folder (it has no {CONFIG}){_hint(folder)}", field="run")
    return read_toml_file("run", folder / CONFIG)


def _parse_entry(line: bytes) -> dict[str, Any] | None:
    """A line of the metrics, or None if it is damaged. The checksums in lines of older runs are ignored."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or type(row.get("iteration")) is not int:
        return None
    for field in fields(Progress):
        optional = field.default is None
        if type(row.setdefault(field.name, None)) not in (int, float, *([NoneType] if optional else [])):
            return None
    row.pop("crc32", None)
    return row


def _is_leftover(path: Path) -> bool:
    """True for what a process leaves that was killed while it created a run."""
    empty_config = path.name == CONFIG and path.is_file() and path.stat().st_size == 0
    return empty_config or path.name == LOCK or is_draft(path)
