"""Configuration files as tables, before anybody looks at what they say."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch

from pathaware.core.errors import UsageError
from pathaware.core.learner import ExecutionName
from pathaware.core.settings import at_least, coerce, short_repr
from pathaware.methods import get_method
from pathaware.training.problems import PROBLEMS, Problem


def read_toml(text: str) -> dict[str, Any]:
    """The tables of a file. TOML has no null, so a setting that is off says "none"."""
    try:
        tables: dict[str, Any] = _plain(tomllib.loads(text))
    except RecursionError:
        raise UsageError("it is nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"it is no TOML ({error})") from None
    return tables


def read_toml_file(option: str, path: Path) -> dict[str, Any]:
    """The same of a file; `option` names it in what is said of one that cannot be used."""
    try:
        return read_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{option}: {path} cannot be read ({error.strerror})") from None
    except ValueError as error:  # also a path or a text that is none
        raise UsageError(f"{option}: {path}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:  # Python reads longer ones, nobody else does
        raise ValueError("an integer of more than 64 bits")
    if isinstance(value, (datetime.date, datetime.time)):
        raise ValueError(f"{value} is a date or a time, and no setting is")
    return None if value == "none" else value


# The settings of a run: validated where they are built, kept as a TOML file.


_THREADS = torch.get_num_threads()  # PyTorch's own choice, before any run changed it
_PRECISIONS = {"fp32": "highest", "tf32": "high", "bf16": "medium"}  # in PyTorch's own words


@dataclass(frozen=True)
class Training:
    """How θ₀ and Φ are learned.

    - `clip` bounds the norm of the meta-gradient, 0 for no bound; `guard` keeps inner loops from running
      away (see `Path.guarded`).
    - `validate`: iterations between validations, 0 for none; the best checkpoint is the one kept.
    - `pretrain`: epochs of ordinary classification of all training classes before meta-training, which
      then starts from those features (see `pathaware.training.pretraining`).
    - `save`: iterations between saved states, from which a run that was stopped goes on; 0 for none.
    - `histograms`: iterations between snapshots of the gradients of one layer, 0 for none (see
      `pathaware.training.gradient_probe`); they change no number either.
    - `chunk`: tasks that run side by side, 0 for all; `checkpoint`: recompute inner steps instead of
      keeping them. Both save memory and change no number. `fit_memory`: turn to them when memory runs out.
    - `precision` on CUDA: `fp32`, `tf32` for products on the tensor cores, `bf16` to also keep activations
      of convolution blocks in bfloat16. Parameters and their gradients are float32 in all three.
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`; `threads` 0 leaves the choice to PyTorch; `graph` records
      the meta-iteration in a CUDA graph.
    - `compile`: compile the meta-iteration to C++ on a CPU (see `pathaware.engine.compiled`); `auto` where
      the run is so long that it pays many times over.
    """

    iterations: int = 60_000
    tasks: int = 4
    rate: float = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = 10.0
    guard: bool = True
    seed: int = 0
    pretrain: int = 0
    validate: int = 0
    validation_tasks: int = 200
    save: int = 1000
    histograms: int = 0
    execution: ExecutionName = "auto"
    chunk: int = 0
    checkpoint: bool = False
    fit_memory: bool = False
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "auto"
    threads: int = 0
    graph: bool = True
    compile: Literal["auto", "on", "off"] = "auto"

    def __post_init__(self) -> None:
        at_least(1, iterations=self.iterations, tasks=self.tasks, validation_tasks=self.validation_tasks)
        at_least(0, chunk=self.chunk, seed=self.seed, clip=self.clip, validate=self.validate)
        at_least(0, threads=self.threads, pretrain=self.pretrain, save=self.save, histograms=self.histograms)
        if self.rate <= 0:
            raise UsageError(f"rate: {self.rate} is not allowed; a positive number")

    @property
    def torch_device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # PyTorch knows more devices, among them some that compute nothing.
        found = re.fullmatch(r"cpu|cuda(?::([0-9]{1,3}))?", self.device)
        if not found:
            raise UsageError(f"device: {short_repr(self.device)} is none of auto, cpu, cuda, cuda:N")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device != "cpu" and int(found[1] or 0) >= count:
            raise UsageError(f"device: {self.device} is not there; use auto or cpu")
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def apply(self) -> None:
        """Set what PyTorch keeps for the whole process."""
        if self.torch_device.index is not None and self.torch_device.type == "cuda":
            torch.cuda.set_device(self.torch_device)  # kernels run on the current GPU
        torch.set_num_threads(self.threads or _THREADS)
        # On a CPU PyTorch would take bf16 for leave to use instructions that not every such CPU has.
        precision = self.precision if self.torch_device.type == "cuda" else "fp32"
        torch.set_float32_matmul_precision(_PRECISIONS[precision])
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.benchmark = True  # shapes never change within a run


@dataclass(frozen=True)
class Config:
    """Everything that decides what a run computes."""

    problem: Problem
    method: str
    method_settings: Mapping[str, Any]
    training: Training

    def __post_init__(self) -> None:
        chosen = get_method(self.method)
        if self.problem.regression and not chosen.regression:
            raise UsageError(f"method: {self.method} tells classes apart; {self.problem.name} has none")
        object.__setattr__(self, "method_settings", chosen.complete(self.method_settings))

    def with_training(self, **training: Any) -> Config:
        """The same with other training settings."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, **training))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        problem: Any = self.problem
        return {
            "problem": {"name": self.problem.name, **dataclasses.asdict(problem)},
            "method": {"name": self.method, **self.method_settings},
            "training": dataclasses.asdict(self.training),
        }

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Config:
        expected = ("problem", "method", "training")
        for table in tables:
            if table not in expected:
                raise UsageError(f"[{table}]: no such table; a configuration has {', '.join(expected)}")
        for table, values in tables.items():
            if not isinstance(values, Mapping):
                raise UsageError(f"{table}: {short_repr(values)} is not allowed; a table [{table}]")
        for table in ("problem", "method"):
            if "name" not in tables.get(table, {}):
                raise UsageError(f"[{table}]: it must say its name")
        problem, rule = dict(tables["problem"]), dict(tables["method"])
        kind = coerce("problem", problem.pop("name"), str)
        if kind not in PROBLEMS:
            raise UsageError(f"problem: {kind!r} is none of {', '.join(PROBLEMS)}")
        training = {**PROBLEMS[kind].training, **tables.get("training", {})}
        return cls(
            _build("problem", PROBLEMS[kind], problem),
            coerce("method", rule.pop("name"), str),
            rule,
            _build("training", Training, training),
        )

    def to_toml(self) -> str:
        blocks = []
        for table, values in self.to_dict().items():
            # TOML has no null, so a setting that is off says "none".
            lines = [f"{key} = {json.dumps('none' if v is None else v)}" for key, v in values.items()]
            blocks.append("\n".join([f"[{table}]", *lines]))
        return "\n\n".join(blocks) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> Config:
        return cls.from_dict(read_toml(text))


def differences(there: Config, here: Config) -> str:
    """`training.rate 0.001, here 0.002; …`: what tells two configurations apart, or nothing."""
    old, new = there.to_dict(), here.to_dict()
    found = [
        f"{table}.{key} {old[table].get(key)}, here {new[table].get(key)}"
        for table in old
        for key in dict.fromkeys([*old[table], *new[table]])
        if old[table].get(key) != new[table].get(key)
    ]
    return "; ".join(found)


def setting_type(kind: Any, name: str) -> Any:
    """The annotation of a setting, which says what `fit` allows."""
    return get_type_hints(kind)[name]


def _build(table: str, kind: Any, values: Mapping[str, Any]) -> Any:
    """A settings dataclass from a table of a file, every value checked."""
    hints = get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise UsageError(f"{name}: [{table}] has no such setting; it has {', '.join(known)}")
    return kind(**{name: coerce(name, value, hints[name]) for name, value in values.items()})


def parse_setting(text: str) -> tuple[str, str, Any]:
    """`"method.skip=none"` → `("method", "skip", None)`."""
    name, equals, value = text.partition("=")
    table, dot, key = name.partition(".")
    if not (equals and dot and key) or table not in ("problem", "method", "training"):
        raise UsageError(f"{text!r} is not of the form problem.X=…, method.X=… or training.X=…", field="set")
    return table, key, parse_value(value)


def parse_value(text: str) -> Any:
    """A value as a person types it: `none`, `true`, `5`, `0.1`, or a word."""
    if text == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter of brackets within brackets
        return text
