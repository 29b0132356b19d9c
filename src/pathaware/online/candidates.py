"""Which settings a contestant may choose from on its validation stream, by stream and contestant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from pathaware.errors import UsageError
from pathaware.online.contestants import CONTESTANTS, with_settings


def grid(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


# On each side of what turned out best, where steps of θ do not cost too much to try.
SINE = {
    "online": [
        *grid(rate=(0.005, 0.01, 0.02), meta_rate=(1e-2,), pull=(0.1, 1.0)),
        *grid(rate=(0.01,), meta_rate=(3e-3, 3e-2), pull=(1.0,)),
    ],
    "literal": [
        *grid(rate=(0.01, 0.02), descent=("adam",), meta_rate=(1e-3, 3e-3, 1e-2)),
        # α₁λ = 1e-3, so these are steps of 1e-3 and 1e-2 down the slope.
        *grid(rate=(0.01,), descent=("sgd",), meta_rate=(1.0, 10.0)),
    ],
    "leader": [
        *grid(rate=(0.0025, 0.005, 0.01, 0.02), meta_rate=(1e-2,)),
        *grid(rate=(0.005,), meta_rate=(3e-3, 3e-2)),
    ],
    "tuning": grid(rate=(0.005, 0.01, 0.02, 0.05)),
    "scratch": grid(rate=(0.005, 0.01, 0.02, 0.05)),
}
# A run takes a minute here. With α₂ = 1e-3 and 1e-2 the online learner was worse on the validation stream.
GLYPHS = {
    "online": grid(rate=(0.05, 0.1), meta_rate=(3e-3,), replay=(4,)),
    "literal": grid(rate=(0.05, 0.1), meta_rate=(1e-3, 3e-3, 1e-2)),
    "leader": grid(rate=(0.05, 0.1), meta_rate=(3e-3,), replay=(4,)),
    "tuning": grid(rate=(0.02, 0.05, 0.1, 0.2)),
    "scratch": grid(rate=(0.02, 0.05, 0.1, 0.2)),
}
CANDIDATES: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = {"sine": SINE, "glyphs": GLYPHS}


def entries(
    stream: str, only: Iterable[str] = (), given: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The candidates of all contestants, or of `only` some; what is `given` is set in each of them."""
    given = given or {}
    only = list(only)
    for name in (*only, *given):
        if name not in CONTESTANTS:
            raise UsageError(f"contestant: {name!r} is none of {', '.join(CONTESTANTS)}")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, candidates in CANDIDATES[stream].items():
        if only and name not in only:
            if name in given:
                raise UsageError(f"--set: {name} does not take part")
            continue
        found[name] = []
        for candidate in candidates:
            merged = {**candidate, **given.get(name, {})}
            with_settings(name, merged)  # refused before anything runs
            if merged not in found[name]:
                found[name].append(merged)
    return found
