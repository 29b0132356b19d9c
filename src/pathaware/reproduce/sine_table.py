"""Table 3: regression of sine waves."""

from __future__ import annotations

from pathaware.report.paper import SINE_MSE, sine_mse
from pathaware.reproduce.goal import Goal, Line, Place
from pathaware.reproduce.image_tables import LABELS
from pathaware.reproduce.trial import Trial

COLUMN = "MSE"
NOTES = ("Mean squared error over new waves, 1,000 points each, with 95 % intervals.",)


def table3() -> Goal:
    lines = [
        Line(
            f"k{shots}-{method}",
            f"K = {shots}, {LABELS[method].partition(',')[0]}",
            {COLUMN: Place(sine_trial(shots, method), sine_mse(shots, method))},
            group=str(shots),
        )
        for shots, cited in SINE_MSE.items()
        for method in cited
    ]
    return Goal("table3", "Table 3: sine regression", "mse", [COLUMN], lines, NOTES)


def sine_trial(shots: int, method: str) -> Trial:
    return Trial(
        f"sine-k{shots}-{method}", {"problem": {"name": "sine", "shots": shots}, "method": {"name": method}}
    )
