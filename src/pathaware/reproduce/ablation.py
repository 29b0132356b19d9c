"""Table 4: what each part of PAMELA adds, on the same data and for the same number of iterations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pathaware.report.paper import ABLATION
from pathaware.report.tables.model import NOTHING
from pathaware.reproduce.goal import Goal, Line, Place
from pathaware.reproduce.image_tables import DATA, base, imported
from pathaware.reproduce.trial import Trial

# One Q for every parameter, as Meta-SGD has it; PAMELA's own is one for each filter.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "maml": ("MAML", {"name": "maml"}),
    "q0-single": ("MAML + Q₀ (single step)", {"name": "meta-sgd"}),
    "q0-multiple": ("MAML + Q₀ (multiple steps)", {"name": "meta-sgd", "steps": 5}),
    "q": ("MAML + Q", {"name": "pamela", "skip": None}),
    "p": ("MAML + P", {"name": "pamela", "q": "constant"}),
    "qp1": ("MAML + Q + P¹", {"name": "pamela", "skip": 1}),
    "qp2": ("MAML + Q + P²", {"name": "pamela", "skip": 2}),
    "qp3": ("MAML + Q + P³", {"name": "pamela", "skip": 3}),
    "qp4": ("MAML + Q + P⁴", {"name": "pamela", "skip": 4}),
}


def table4(data: str, available: Callable[[str], bool] = imported) -> Goal:
    column = f"{DATA.get(data, data)} 5-shot"
    lines = [
        Line(
            key,
            label,
            {column: _place(data, key, method, available(data))},
            group="parts" if key[:2] != "qp" else "skips",
        )
        for key, (label, method) in ROWS.items()
    ]
    notes = [
        "Accuracy in % on new 5-way 5-shot tasks, with 95 % intervals; all rows trained equally long, with "
        "the paper's settings. The paper's numbers are of miniImageNet and 60,000 iterations.",
    ]
    return Goal("table4", "Table 4: dissecting PAMELA", "accuracy", [column], lines, notes, equal=True)


def _place(data: str, key: str, method: dict[str, Any], available: bool) -> Place:
    printed = ABLATION.get(key, NOTHING)
    trial = Trial(f"{data}-5shot-ablation-{key}", base(data, method))
    return Place(trial, printed, "" if available else "data set not imported")
