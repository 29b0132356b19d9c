"""One process at a time works in a folder."""

from __future__ import annotations

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner
from pathaware.training.checksummed import CorruptFile, read_checksummed, write_checksummed
from pathaware.training.config import Config, differences, read_toml_file
from pathaware.training.gradient_probe import Histograms
from pathaware.training.state import State
from pathaware.training.trainer import Progress, build

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


# A run is a folder: what was asked for, what happened, and what came out.


CONFIG, METRICS, CHECKPOINT, FIGURES = "config.toml", "metrics.jsonl", "checkpoint.safetensors", "figures"
HISTOGRAMS, STATES = "histograms.safetensors", "state-[0-9]*.safetensors"
KEPT = 2
"""States that are kept: if the last one is damaged, there is one before it."""


class Run:
    """`config.toml`, `metrics.jsonl`, TensorBoard events, `checkpoint.safetensors`, `figures/`, and
    `histograms.safetensors` if it was asked for; while it is not finished its last two states, from which
    it goes on when it was stopped."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config

    @classmethod
    def create(cls, folder: Path, config: Config) -> Run:
        """Start a run in a new or empty folder; nothing that is there is ever overwritten."""
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder", field="out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                what = "holds another run" if (folder / CONFIG).exists() else "is not empty"
                raise UsageError(f"{folder} {what}; name a new folder or remove it", field="out")
            (folder / CONFIG).write_text(config.to_toml(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{folder} cannot be written ({error.strerror})", field="out") from None
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> Run:
        try:
            there = (folder / CONFIG).is_file()
        except (OSError, ValueError):  # it cannot be the name of anything
            there = False
        if not there:
            raise UsageError(f"{folder} is no run folder (it has no {CONFIG})", field="run")
        tables = read_toml_file("RUN", folder / CONFIG)
        try:
            return cls(folder, Config.from_dict(tables))
        except ValueError as error:
            raise UsageError(f"{folder / CONFIG}: {error}", field="run") from None

    def append(self, progress: Progress) -> None:
        """A line of its own, with a checksum, since a line can be cut off or rot as any file can."""
        text = json.dumps(asdict(progress))
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(f'{text[:-1]}, "crc32": {zlib.crc32(text.encode())}}}\n')

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Every report so far; a damaged line is an error."""
        for number, row in enumerate(self._rows(), 1):
            if row is None:
                raise UsageError(f"{self.folder / METRICS} is damaged (line {number})", field="run")
            yield row

    def _rows(self) -> Iterator[dict[str, Any] | None]:
        """The reports line by line, None for a damaged one."""
        path = self.folder / METRICS
        if not path.exists():
            return
        for line in path.read_bytes().split(b"\n")[:-1]:
            text, mark, checksum = line.rpartition(b', "crc32": ')
            good = mark and checksum == b"%d}" % zlib.crc32(text + b"}")
            yield json.loads(text + b"}") if good else None

    def forget_after(self, iteration: int) -> None:
        """Drop reports of what comes after an iteration to which the run goes back, and a cut-off line."""
        path = self.folder / METRICS
        if not path.exists():
            return
        lines = path.read_bytes().split(b"\n")
        kept = []
        for line, row in zip(lines, self._rows(), strict=False):
            if row is None or row["iteration"] > iteration:
                break
            kept.append(line + b"\n")
        draft = path.with_name(f"{METRICS}.new")
        draft.write_bytes(b"".join(kept))
        os.replace(draft, path)

    def save_state(self, state: State) -> None:
        state.write(self.folder / f"state-{state.iteration}.safetensors")
        for old in self._states()[KEPT:]:
            old.unlink()

    def _states(self) -> list[Path]:
        """The newest first."""
        return sorted(
            self.folder.glob(STATES), key=lambda path: int(path.stem.partition("-")[2]), reverse=True
        )

    def state(self, say: Callable[[str], None] = lambda line: None) -> State | None:
        """Where the run was when it was last saved; None if it was not, or is finished.

        A damaged state is passed over for the one before it, and `say` hears of it.
        """
        found = self._states()
        for path in found:
            try:
                state = State.read(path)
            except CorruptFile as error:
                say(f"{path} is damaged ({error}); it is passed over")
                continue
            self._refuse_another(Config.from_dict(state.config), path)
            return state
        if found:
            raise UsageError(
                f"no state in {self.folder} can be read; start again in a new folder", field="run"
            )
        return None

    def forget_states(self) -> None:
        for path in self._states():
            path.unlink()

    def _refuse_another(self, config: Config, path: Path) -> None:
        """What was saved must have been made with the settings that the folder names."""
        found = differences(config, self.config)
        if found:
            raise UsageError(
                f"{self.folder / CONFIG} is not what {path.name} was made with: {found}", field="run"
            )

    def histograms(self) -> Histograms | None:
        """How gradients were spread over training, if the run kept that."""
        path = self.folder / HISTOGRAMS
        return Histograms.load(path) if path.exists() else None

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        last = max((row["iteration"] for row in self.metrics()), default=0)
        return last == self.config.training.iterations and (self.folder / CHECKPOINT).exists()

    def save(self, learner: FewShotLearner, iteration: int) -> None:
        """Keep θ₀ and Φ as what the run has learned."""
        inputs = self.config.problem.inputs()
        about = {"iteration": iteration, "config": self.config.to_dict(), "inputs": inputs}
        write_checksummed(self.folder / CHECKPOINT, learner.state_dict(), about)

    def load(self, device: str = "auto") -> FewShotLearner:
        """The trained learner, ready to adapt; on this machine's device, whatever it was trained on."""
        tensors, inputs = self.learned()
        learner = build(self.config, replace(self.config.training, device=device).torch_device, inputs)
        learner.load_state_dict(tensors)
        return learner

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """θ₀ and Φ by name, and what the network reads (see `Problem.inputs`)."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            raise UsageError(
                f"{self.folder} has no {CHECKPOINT}; it was stopped before it was trained", field="run"
            )
        try:
            tensors, about = read_checksummed(path)
        except CorruptFile as error:
            raise UsageError(f"{path} cannot be read ({error})", field="run") from None
        self._refuse_another(Config.from_dict(about["config"]), path)
        return tensors, about.get("inputs") or self.config.problem.inputs()
