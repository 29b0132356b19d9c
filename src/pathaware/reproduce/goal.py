"""What is to be made: a table of places, each filled by a trial or left empty for a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pathaware.report.tables.model import NOTHING
from pathaware.reproduce.trial import Trial


@dataclass(frozen=True)
class Place:
    """A number of a table: the paper's, the trial that makes ours, and why it cannot be made if it cannot."""

    trial: Trial
    printed: str = NOTHING
    reason: str = ""


@dataclass(frozen=True)
class Line:
    """A row: `key` names it on the command line, `label` in the table; its places by column."""

    key: str
    label: str
    places: Mapping[str, Place]
    group: str = ""


@dataclass(frozen=True)
class Goal:
    """A table of the paper. With `equal` all of its rows must have been trained for as many iterations, with
    `timed` for as much time; a run of such a table is of no use to others."""

    name: str
    title: str
    metric: str
    columns: Sequence[str]
    lines: Sequence[Line]
    notes: Sequence[str] = ()
    equal: bool = False
    timed: bool = False

    def trials(self) -> list[Trial]:
        return [place.trial for line in self.lines for place in line.places.values()]
