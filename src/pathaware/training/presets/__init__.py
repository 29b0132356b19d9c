"""Presets: named configurations.

`glyphs` and the shipped models are TOML files in this folder. The rows of the paper's Tables 1 to 3 are
composed from their names, such as `table2-cifar-fs-maml-5shot` and `table3-sine-k10-maml`; all other settings
are defaults. With `-strict` at the end of the name of a row, what our defaults add to the paper is left out:
`table2-cifar-fs-maml-5shot-strict`. `recipe-cifar-fs-5shot` and the like start from a pretraining and train
with more than the paper's loss; `recipe-sine-k5` and the like need no pretraining. See the guide "Beyond the
paper's accuracy".
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file

FOLDER = Path(__file__).parent

ROWS = {
    "table1": (("miniimagenet",), ("fomaml", "maml", "meta-sgd", "pamela", "reptile")),
    "table2": (("cifar-fs", "tieredimagenet"), ("maml", "meta-sgd", "pamela")),
}
"""Data sets and methods of each table, every one with 1 and 5 shots."""
SINE_ROWS = ("maml", "meta-sgd", "mt-net", "pamela")
"""Methods of Table 3, every one with 5, 10 and 20 points."""

STRICT = "-strict"
PRINTED = {"schedule": "constant", "clip": 0.0, "guard": False}
"""Training settings without what the paper does not mention."""
PRINTED_SINE = {"tasks": 4, "rate": 1e-3, "iterations": 60_000}
"""Settings that the paper uses "in all the experiments", where our defaults for sine waves differ."""
PRINTED_PAMELA = {"rate": 0.01, "q_start": 1.0}
DIRECT = {"rate": 1.0, "q_start": 0.01}
"""PAMELA with Q as the step size itself: Q learns a hundred times as fast as with `PRINTED_PAMELA`."""
SUGGESTED: dict[str, dict[str, dict[str, Any]]] = {"sine": {"pamela": {"rate": 0.1, "q_start": 0.1}}}
"""Defaults of methods that depend on the problem; they count together, if none of them is given. With our
training settings for sine waves PAMELA's best speed of Q is 10."""

# The recipe, see the guide; `pathaware_research.studies.recipe` takes one part out at a time.
RECIPE_METHOD = {**DIRECT, "q_granularity": "tensor-channel", "p_granularity": "tensor"}
RECIPE_ITERATIONS = {"cifar-fs": 6_000, "miniimagenet": 2_000}
RECIPE_HEAD: dict[str, dict[str, Any]] = {
    "cifar-fs": {"head": "prototypes"},
    "miniimagenet": {"head": "projected", "dimensions": 128},
}
"""Where the last layer begins: of 1,600 features most are noise for a class mean, of 256 few."""
RECIPE_RATE = {"cifar-fs": 5e-4, "miniimagenet": 1e-4}
RECIPE_PROBLEM = {"augment": True, "jitter": 0.4, "statistics": "running"}
RECIPE_TRAINING = {
    "validate": 1000,
    "snapshots": 5,
    "classify": 0.5,
    "classify_end": 0.1,
}
SINE_RECIPE: dict[str, dict[str, Any]] = {
    "problem": {"queries": 40},
    "method": {"name": "pamela", **DIRECT, "skip": 1, "p_granularity": "parameter"},
    "training": {"rate": 4e-3},
}
SINE_ITERATIONS = {5: 80_000, 10: 40_000, 20: 40_000}
"""Iterations of the recipe for sine waves, by the number of points."""


def presets() -> list[str]:
    """The names of all presets, without the `-strict` ones."""
    files = (path.stem for path in FOLDER.glob("*.toml"))
    return sorted([*files, *_table_rows(), *_sine_rows(), *_recipes(), *_sine_recipes()])


def all_presets() -> list[str]:
    """The names of all presets and of the `-strict` ones."""
    return sorted([*presets(), *(f"{row}{STRICT}" for row in (*_table_rows(), *_sine_rows()))])


def load_preset(name: str, method: str = "pamela") -> dict[str, dict[str, Any]]:
    """The tables of a preset, or of any TOML file by its path.

    If a file leaves the method open, `[method.pamela]` has the settings in which PAMELA differs from others;
    those of this `method` are returned.
    """
    from pathaware.training.config import read_toml  # imports PyTorch, which names of presets do not need

    if name in _recipes():
        return _compose_recipe(*_recipes()[name])
    if name in _sine_recipes():
        return _compose_sine_recipe(_sine_recipes()[name])
    row = name.removesuffix(STRICT)
    rows, waves = _table_rows(), _sine_rows()
    if row in rows or row in waves:
        tables = _compose(*rows[row]) if row in rows else _compose_sine(*waves[row])
        if row != name:
            own = PRINTED_SINE if row in waves else {}
            tables["training"] = {**tables.get("training", {}), **PRINTED, **own}
            if tables["method"]["name"] == "pamela":
                tables["method"] = {**tables["method"], **PRINTED_PAMELA}
        return tables
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        text = read_file(path).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise UsageError(f"preset: {path} is not valid TOML ({error})") from None
        near = get_close_matches(name, all_presets(), n=3, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        hint += f" Also close: {', '.join(near[1:])}" if near[1:] else ""
        raise UsageError(
            f"preset: {name[:80]!r} must be a TOML file or one of those that `pathaware train preset --list` "
            f"prints{hint}"
        ) from None
    try:
        tables = read_toml(text)
    except UsageError as error:
        raise UsageError(f"preset: {path}: {error}") from None
    chosen = tables.get("method")
    if isinstance(chosen, dict):
        own = chosen.get(str(chosen.get("name", method)), {})
        plain = {key: value for key, value in chosen.items() if not isinstance(value, dict)}
        tables["method"] = {**plain, **(own if isinstance(own, dict) else {})}
    return tables


def paper_problem(data: str) -> dict[str, Any]:
    """The paper's settings for a data set. It augments miniImageNet and CIFAR-FS, but not tieredImageNet."""
    problem: dict[str, Any] = {"name": "classification", "data": data}
    return problem | ({"augment": False} if data == "tieredimagenet" else {})


def _table_rows() -> dict[str, tuple[str, str, int]]:
    """Data set, method and shots of each row, by its name."""
    return {
        f"{table}-{data}-{method}-{shots}shot": (data, method, shots)
        for table, (sets, methods) in ROWS.items()
        for data in sets
        for method in methods
        for shots in (1, 5)
    }


def _sine_rows() -> dict[str, tuple[int, str]]:
    """Points and method of each row of Table 3, by its name."""
    return {f"table3-sine-k{shots}-{m}": (shots, m) for shots in (5, 10, 20) for m in SINE_ROWS}


def _recipes() -> dict[str, tuple[str, int]]:
    """Data set and shots of each recipe, by its name."""
    return {f"recipe-{data}-{shots}shot": (data, shots) for data in RECIPE_ITERATIONS for shots in (1, 5)}


def _compose_recipe(data: str, shots: int) -> dict[str, dict[str, Any]]:
    """PAMELA from the features in the folder that `pathaware pretrain DATA` writes by default."""
    mirrored = {"mirror_support": True} if shots == 1 else {}
    start = {"start": f"runs/pretrain-{data}-conv4-seed0"}
    return {
        "problem": {**paper_problem(data), "ways": 5, "shots": shots, **RECIPE_PROBLEM, **mirrored},
        "method": {"name": "pamela", **RECIPE_METHOD},
        "training": {
            "iterations": RECIPE_ITERATIONS[data],
            "rate": RECIPE_RATE[data],
            **RECIPE_HEAD[data],
            **start,
            **RECIPE_TRAINING,
        },
    }


def _sine_recipes() -> dict[str, int]:
    """Points of each recipe for sine waves, by its name."""
    return {f"recipe-sine-k{shots}": shots for shots in SINE_ITERATIONS}


def _compose_sine_recipe(shots: int) -> dict[str, dict[str, Any]]:
    problem, training = SINE_RECIPE["problem"], SINE_RECIPE["training"]
    return {
        "problem": {"name": "sine", "shots": shots, **problem},
        "method": dict(SINE_RECIPE["method"]),
        "training": {"iterations": SINE_ITERATIONS[shots], **training},
    }


def _compose_sine(shots: int, method: str) -> dict[str, dict[str, Any]]:
    return {"problem": {"name": "sine", "shots": shots}, "method": {"name": method}}


def _compose(data: str, method: str, shots: int) -> dict[str, dict[str, Any]]:
    problem = {**paper_problem(data), "ways": 5, "shots": shots}
    tables = {"problem": problem, "method": {"name": method}}
    if shots == 5 and method in ("maml", "pamela"):
        tables["training"] = {"histograms": 200}  # for Fig. 6
    return tables
