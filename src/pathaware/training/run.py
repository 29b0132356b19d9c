"""A run is a folder: what was asked for, what happened, and what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pathaware.errors import UsageError
from pathaware.learner import MetaLearner
from pathaware.training.config import Config
from pathaware.training.histograms import Histograms
from pathaware.training.state import State
from pathaware.training.toml import read_toml_file
from pathaware.training.trainer import Progress, build

CONFIG, METRICS, CHECKPOINT, FIGURES = "config.toml", "metrics.jsonl", "checkpoint.safetensors", "figures"
STATE, HISTOGRAMS = "state.safetensors", "histograms.safetensors"


class Run:
    """`config.toml`, `metrics.jsonl`, TensorBoard events, `checkpoint.safetensors`, `figures/`, and
    `histograms.safetensors` if it was asked for; while it is not finished `state.safetensors`, from which
    it goes on when it was stopped."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.config = config

    @classmethod
    def create(cls, folder: Path, config: Config) -> Run:
        """Start a run in a new or empty folder; nothing that is there is ever overwritten."""
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out: {folder} is a file; name a folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                what = "holds another run" if (folder / CONFIG).exists() else "is not empty"
                raise UsageError(f"--out: {folder} {what}; name a new folder or remove it")
            (folder / CONFIG).write_text(config.to_toml(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out: {folder} cannot be written ({error.strerror})") from None
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> Run:
        try:
            there = (folder / CONFIG).is_file()
        except (OSError, ValueError):  # it cannot be the name of anything
            there = False
        if not there:
            raise UsageError(f"RUN: {folder} is no run folder (it has no {CONFIG})")
        tables = read_toml_file("RUN", folder / CONFIG)
        try:
            return cls(folder, Config.from_dict(tables))
        except ValueError as error:
            raise UsageError(f"RUN: {folder / CONFIG}: {error}") from None

    def append(self, progress: Progress) -> None:
        with (self.folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(progress)) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        path = self.folder / METRICS
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    raise UsageError(f"RUN: {path} cannot be read (line {line[:40]!r})") from None

    def forget_after(self, iteration: int) -> None:
        """Drop what was written after an iteration to which the run goes back; a cut-off line too."""
        path = self.folder / METRICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["iteration"] > iteration:
                    break
            except ValueError:
                break
            kept.append(line + "\n")
        path.write_text("".join(kept), encoding="utf-8")

    def save_state(self, state: State) -> None:
        state.write(self.folder / STATE)

    def state(self) -> State | None:
        """Where the run was when it was last saved; None if it was not, or is finished."""
        path = self.folder / STATE
        return State.read(path) if path.exists() else None

    def forget_state(self) -> None:
        (self.folder / STATE).unlink(missing_ok=True)

    def histograms(self) -> Histograms | None:
        """How gradients were spread over training, if the run kept that."""
        path = self.folder / HISTOGRAMS
        return Histograms.load(path) if path.exists() else None

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        last = max((row["iteration"] for row in self.metrics()), default=0)
        return last == self.config.training.iterations and (self.folder / CHECKPOINT).exists()

    def save(self, learner: MetaLearner) -> None:
        """Write θ₀ and Φ: all of it or nothing."""
        from safetensors.torch import save_file

        state = {name: value.detach().cpu().contiguous() for name, value in learner.state_dict().items()}
        draft = self.folder / f"{CHECKPOINT}.new"
        save_file(state, draft)
        os.replace(draft, self.folder / CHECKPOINT)

    def load(self, device: str = "auto") -> MetaLearner:
        """The trained learner, ready to adapt; on this machine's device, whatever it was trained on."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / CHECKPOINT
        if not path.exists():
            raise UsageError(f"RUN: {self.folder} has no {CHECKPOINT}; it was stopped before it was trained")
        learner = build(self.config, replace(self.config.training, device=device).torch_device)
        try:
            learner.load_state_dict(load_file(path))
        except (SafetensorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(f"RUN: {path} cannot be read ({reason})") from None
        return learner
