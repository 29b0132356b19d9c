"""The folder of a sweep: runs, what they reached, and what their processes said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pathaware.errors import UsageError
from pathaware.reproduce.results import Result
from pathaware.sweep.point import Point
from pathaware.training.run import CONFIG, Run


@dataclass(frozen=True)
class Folder:
    """`runs/NAME`, `results/NAME-val.json` and `logs/NAME.log`. Runs are judged on `tasks` tasks of `split`,
    by default as many as the problem wants."""

    path: Path
    split: str = "val"
    tasks: int | None = None

    def run(self, point: Point) -> Path:
        return self.path / "runs" / point.name

    def record(self, point: Point) -> Path:
        return self.path / "results" / f"{point.name}-{self.split}.json"

    def log(self, point: Point) -> Path:
        return self.path / "logs" / f"{point.name}.log"

    def judged(self, point: Point) -> int:
        return self.tasks or point.config.problem.evaluation_tasks

    def make(self) -> None:
        try:
            for name in ("runs", "results", "logs"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise UsageError(f"--out: {self.path} cannot be written ({error})") from None

    def must_fit(self, point: Point) -> None:
        """A run that is there must be of this sweep: nothing is overwritten."""
        folder = self.run(point)
        if (folder / CONFIG).exists() and Run.open(folder).config != point.config:
            raise UsageError(f"--out: {folder} holds a run of other settings; name a new folder or remove it")

    def result(self, point: Point) -> Result | None:
        """What the run reached, if it was judged as it is asked for now; a cut-off record does not count."""
        try:
            record = json.loads(self.record(point).read_text(encoding="utf-8"))
            as_asked = (record["config"], record["result"]["tasks"])
            return Result.of(record) if as_asked == (point.config.to_dict(), self.judged(point)) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def last_words(self, point: Point) -> str:
        """Why a run failed, by the last line that its process wrote."""
        try:
            lines = self.log(point).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        return said[-1].removeprefix("error: ")[:200] if said else ""
