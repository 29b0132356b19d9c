"""What runs reached, from the files that say so."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.errors import UsageError
from pathaware.reproduce.trial import Trial, signature
from pathaware.training.config import Config


@dataclass(frozen=True)
class Result:
    """One evaluated run: its record, and what of its configuration tells it from others."""

    record: dict[str, Any]
    signature: str
    iterations: int
    seed: int

    @classmethod
    def of(cls, record: dict[str, Any]) -> Result:
        config = Config.from_dict(record["config"])
        return cls(record, signature(config), config.training.iterations, config.training.seed)

    @property
    def device(self) -> str:
        return str(self.record["environment"]["device"])

    def value(self, metric: str) -> tuple[float, float]:
        """The metric and its 95 % interval."""
        result = self.record["result"]
        return result[metric], result[f"{metric}_ci95"]


class Results:
    """A folder of records, looked up by what was trained."""

    def __init__(self, found: Iterable[Result]) -> None:
        self.found = list(found)

    @classmethod
    def read(cls, folder: Path, names: Sequence[str] = ()) -> Results:
        """All records of a folder, or those of runs with certain names."""
        patterns = [f"{glob.escape(name)}-[0-9]*-seed[0-9]*.json" for name in names] or ["*.json"]
        found = []
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                judged = record.get("result", {}) if isinstance(record, dict) else {}
                # Of a run that was judged several times, the paper's way counts: on test tasks, transductive.
                if judged.get("split") == "test" and judged.get("transductive"):
                    found.append(Result.of(record))
            except (OSError, ValueError, KeyError) as error:
                raise UsageError(f"--results: {path} is no record of a run ({error})") from None
        return cls(found)

    def of(self, trial: Trial, iterations: int | None = None) -> list[Result]:
        """A result a seed, of the longest training unless its length is given."""
        wanted = signature(trial.config())
        same = [r for r in self.found if r.signature == wanted and iterations in (None, r.iterations)]
        longest = max((r.iterations for r in same), default=0)
        by_seed = {r.seed: r for r in same if r.iterations == longest}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def common_length(self, trials: Sequence[Trial]) -> int | None:
        """The number of iterations that most of these trials were trained for; of several, the largest."""
        counts: dict[int, int] = {}
        for trial in trials:
            wanted = signature(trial.config())
            for length in {r.iterations for r in self.found if r.signature == wanted}:
                counts[length] = counts.get(length, 0) + 1
        return max(counts, key=lambda length: (counts[length], length)) if counts else None
