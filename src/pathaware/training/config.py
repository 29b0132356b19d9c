"""The configuration of a run: three tables of settings, validated when built and stored as TOML."""

from __future__ import annotations

import ctypes
import dataclasses
import datetime
import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from pathaware.core.errors import UsageError, did_you_mean, no_such_setting
from pathaware.core.execution import ExecutionName
from pathaware.core.learner import HeadStart
from pathaware.core.settings import at_least, coerce, short_repr, type_hints
from pathaware.methods import Method, get_method
from pathaware.training.presets import SUGGESTED
from pathaware.training.problems import PROBLEMS, Problem

S = TypeVar("S")


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. It has no null, so the text "none" stands for None."""
    try:
        tables: dict[str, Any] = _plain(tomllib.loads(text))
    except RecursionError:
        raise UsageError("nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"not valid TOML ({error})") from None
    return tables


def read_toml_file(field: str, path: Path) -> dict[str, Any]:
    """Read a TOML file; `field` is the argument that an error names."""
    try:
        return read_toml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", field=field) from None
    except ValueError as error:  # a path that no file can have, not UTF-8, or not TOML
        raise UsageError(f"{path}: {error}", field=field) from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer has more than 64 bits")
    if isinstance(value, (datetime.date, datetime.time)):
        raise ValueError(f"{value} is a date or a time, which no setting takes")
    return None if value == "none" else value


_THREADS = torch.get_num_threads()  # PyTorch's default, before any run changed it
_PRECISIONS = {"fp32": "highest", "tf32": "high", "bf16": "medium"}  # PyTorch's names


@dataclass(frozen=True)
class Training:
    """Settings of meta-training: how θ₀ and Φ are learned.

    - `rate`: learning rate of Adam; `schedule`: constant, or half a cosine down to zero.
    - `clip`: largest norm of the meta-gradient, 0 for no limit; `guard`: stop inner loops that diverge (see
      `Path.guarded`).
    - `validate`: iterations between validations, 0 for none; the best checkpoint is kept.
    - `start`: folder of a pretraining whose network is the initialisation, except for the last layer (see
      `pathaware pretrain`).
    - `rule_rate`: learning rate of Φ, 0 for that of θ₀ (`rate`); `warmup`: iterations in which the learning
      rates grow from zero; `head_rate`: initial step size of the last layer, for methods that learn step
      sizes, 0 for that of all layers. `head`: the last layer begins at its learned parameters or at the class
      means of each support set (see `pathaware.core.prototype_start`); `dimensions`: those of the subspace in
      which `projected` takes the means.
    - `average`: momentum of an exponential average of θ₀ and Φ, 0 for none; `evaluate_average`: validate and
      keep that average. `distil`: weight of the loss that pulls predictions towards those of the average, at
      `temperature`. `teacher`: folder of a pretraining whose predictions are learned with weight `teach`.
      `classify`: weight of the loss of classifying all training classes, which changes linearly to
      `classify_end`. `dropout`: fraction of activations that are set to zero for queries. See
      `pathaware.training.recipe`.
    - `snapshots`: number of checkpoints to keep, the best by validation, for means over their predictions.
    - `save`: iterations between saved states, from which a stopped run resumes; 0 for none.
    - `histograms`: iterations between snapshots of the gradients of one layer, 0 for none (see
      `pathaware.training.gradient_probe`). They do not affect training.
    - `chunk`: tasks that run side by side, 0 for all; `checkpoint`: recompute inner steps instead of storing
      their activations. Both save memory and change no number. `fit_memory`: use them when memory runs out.
    - `precision` on CUDA: `fp32`, `tf32` for products on tensor cores, `bf16` to also store activations of
      convolution blocks in bfloat16. Parameters and their gradients are float32 in all three.
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`; `threads`: 0 for PyTorch's default; `graph`: run the
      meta-iteration as a CUDA graph.
    - `compile`: compile the meta-iteration to C++ on a CPU (see `pathaware.engine.compiled`); `auto` does so
      in runs that are long enough for it to pay.
    """

    iterations: int = 60_000
    tasks: int = 4
    rate: float = 1e-3
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = 10.0
    guard: bool = True
    seed: int = 0
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
    start: str = ""
    rule_rate: float = 0.0
    warmup: int = 0
    head_rate: float = 0.0
    head: HeadStart = "learned"
    dimensions: int = 64
    average: float = 0.0
    evaluate_average: bool = False
    distil: float = 0.0
    temperature: float = 4.0
    teacher: str = ""
    teach: float = 0.3
    classify: float = 0.0
    classify_end: float = 0.0
    dropout: float = 0.0
    snapshots: int = 0

    def __post_init__(self) -> None:
        at_least(1, iterations=self.iterations, tasks=self.tasks, validation_tasks=self.validation_tasks)
        at_least(1, dimensions=self.dimensions)
        at_least(0, chunk=self.chunk, seed=self.seed, clip=self.clip, validate=self.validate)
        at_least(0, threads=self.threads, save=self.save, histograms=self.histograms)
        if self.rate <= 0:
            raise UsageError(f"rate: {self.rate} is not allowed; must be a positive number")
        at_least(0, rule_rate=self.rule_rate, warmup=self.warmup, head_rate=self.head_rate)
        at_least(0, classify=self.classify, classify_end=self.classify_end, snapshots=self.snapshots)
        for name in ("average", "distil", "teach", "dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}: {getattr(self, name)} is not allowed; must be 0 to 1")
        if self.temperature <= 0:
            raise UsageError(f"temperature: {self.temperature} is not allowed; must be a positive number")
        if (self.distil or self.evaluate_average) and not self.average:
            raise UsageError("average: 0 is not allowed with distil or evaluate_average; such as 0.995")
        if self.distil + (self.teach if self.teacher else 0) > 1:
            raise UsageError(f"distil: {self.distil} and teach {self.teach} are more than 1")
        if self.snapshots and not self.validate:
            raise UsageError("snapshots: they are chosen by validation; set validate")

    @property
    def torch_device(self) -> torch.device:
        """The device, after checking that this machine has it."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        # PyTorch accepts other devices, some of which compute nothing.
        found = re.fullmatch(r"cpu|cuda(?::([0-9]{1,3}))?", self.device)
        if not found:
            raise UsageError(f"device: {short_repr(self.device)} must be one of auto, cpu, cuda, cuda:N")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if self.device != "cpu" and int(found[1] or 0) >= count:
            raise UsageError(f"device: {self.device} is not available; use auto or cpu")
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of all parameters and inputs."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    def apply(self) -> None:
        """Apply the settings that PyTorch keeps per process."""
        if self.torch_device.index is not None and self.torch_device.type == "cuda":
            torch.cuda.set_device(self.torch_device)  # kernels run on the current GPU
        torch.set_num_threads(self.threads or _THREADS)
        # On a CPU PyTorch would use bf16 instructions, so that results would depend on the model of the CPU.
        precision = self.precision if self.torch_device.type == "cuda" else "fp32"
        torch.set_float32_matmul_precision(_PRECISIONS[precision])
        torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.benchmark = True  # shapes do not change within a run
        if self.torch_device.type == "cpu":
            _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Have glibc keep up to 2 GiB of freed memory for the next iteration, which needs as much again.

    By default it returns large blocks to the system and gets them back page by page, which takes a tenth of
    the time of an iteration of Conv-4. Other C libraries are left as they are.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # from malloc.h
        library.mallopt(mmap_threshold, 2**25)  # the most that it takes
        library.mallopt(trim_threshold, 2**31 - 1)
        library.mallopt(top_pad, 2**26)


@dataclass(frozen=True)
class Config:
    """All settings of a run: problem, method with its settings, and training.

    Every value is checked; a setting that is not given has its default.

    >>> config = Config.from_dict(
    ...     {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 100}}
    ... )
    >>> config.problem.shots, config.method_settings["steps"], config.training.tasks
    (10, 5, 25)
    >>> Config.from_toml(config.to_toml()) == config
    True
    """

    problem: Problem
    method: str
    method_settings: Mapping[str, Any]
    training: Training

    def __post_init__(self) -> None:
        chosen = get_method(self.method)
        if self.problem.regression and not chosen.regression:
            raise UsageError(
                f"method: {self.method} is for classification; {self.problem.name} has no classes"
            )
        self._check_pretrained(chosen)
        object.__setattr__(self, "method_settings", chosen.complete(self.method_settings))
        if chosen.problem:
            object.__setattr__(self, "problem", dataclasses.replace(self.problem, **chosen.problem))

    def _check_pretrained(self, chosen: Method) -> None:
        """Refuse combinations that have no meaning with a pretrained network or with varying tasks."""
        problem: Any = self.problem
        if getattr(problem, "varying", False) and "any shots" not in chosen.kind.allows:
            raise UsageError(f"varying: {self.method} needs tasks of equal sizes; proto-pamela does not")
        if getattr(problem, "statistics", "batch") == "running" and not self.training.start:
            raise UsageError("statistics: running ones come from a pretraining; set training.start")

    @property
    def has_recipe(self) -> bool:
        """True if training has more than the query loss of the method, see `pathaware.training.recipe`."""
        training, problem = self.training, dataclasses.asdict(self.problem)
        mixed = bool(problem.get("cutmix"))
        return mixed or bool(training.average or training.teacher or training.classify or training.dropout)

    def with_training(self, **training: Any) -> Config:
        """A copy with other training settings."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, **training))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All settings as the tables `problem`, `method` and `training`."""
        return {
            "problem": {"name": self.problem.name, **dataclasses.asdict(self.problem)},
            "method": {"name": self.method, **self.method_settings},
            "training": dataclasses.asdict(self.training),
        }

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Config:
        """Build a configuration from tables: `problem` and `method` with a `name`, and `training`."""
        expected = ("problem", "method", "training")
        for table in tables:
            if table not in expected:
                hint = did_you_mean(table, expected)
                raise UsageError(f"[{table}]: no such table; must be one of {', '.join(expected)}{hint}")
        for table, values in tables.items():
            if not isinstance(values, Mapping):
                raise UsageError(f"{table}: {short_repr(values)} is not allowed; must be a table [{table}]")
        for table in ("problem", "method"):
            if "name" not in tables.get(table, {}):
                raise UsageError(f"[{table}]: name is missing")
        problem, method = dict(tables["problem"]), dict(tables["method"])
        kind = coerce("problem", problem.pop("name"), str)
        if kind not in PROBLEMS:
            hint = did_you_mean(kind, PROBLEMS)
            raise UsageError(f"problem: {kind!r} must be one of {', '.join(PROBLEMS)}{hint}")
        name = coerce("method", method.pop("name"), str)
        suggested = SUGGESTED.get(kind, {}).get(name, {})
        if not suggested.keys() & method.keys():  # they belong together
            method = {**suggested, **method}
        for setting, needed in get_method(name).problem.items():
            if problem.get(setting, needed) != needed:
                given, only = json.dumps(problem[setting]), json.dumps(needed)
                raise UsageError(f"{setting}: {given} is not allowed with {name}; {only}")
        training = {**PROBLEMS[kind].training, **tables.get("training", {})}
        if training.pop("pretrain", 0) != 0:  # a setting of versions up to 0.2.0
            raise UsageError(
                "training.pretrain: no longer a setting; run `pathaware pretrain` and name its folder in "
                "training.start"
            )
        return cls(
            build_settings("problem", PROBLEMS[kind], problem),
            name,
            method,
            build_settings("training", Training, training),
        )

    @classmethod
    def of_run(cls, tables: Mapping[str, Any]) -> Config:
        """The stored configuration of a run; newer settings get the values that keep its behaviour."""
        training = tables.get("training")
        if isinstance(training, Mapping):  # what was pretrained is in the states and the checkpoint
            tables = {**tables, "training": {k: v for k, v in training.items() if k != "pretrain"}}
        method = tables.get("method")
        if isinstance(method, Mapping) and isinstance(method.get("name"), str):
            tables = {**tables, "method": get_method(method["name"]).earlier(method)}
        return cls.from_dict(tables)

    def to_toml(self) -> str:
        """The text of `config.toml`."""
        blocks = []
        for table, values in self.to_dict().items():
            lines = [f"{key} = {json.dumps('none' if v is None else v)}" for key, v in values.items()]
            blocks.append("\n".join([f"[{table}]", *lines]))
        return "\n\n".join(blocks) + "\n"

    @classmethod
    def from_toml(cls, text: str) -> Config:
        """Read a configuration from the text of a TOML file."""
        return cls.from_dict(read_toml(text))


def differences(there: Config, here: Config) -> str:
    """Describe how two configurations differ: `training.rate 0.001, here 0.002; …`; empty if equal."""
    old, new = (
        {f"{table}.{key}": v for table, values in config.to_dict().items() for key, v in values.items()}
        for config in (there, here)
    )
    return setting_differences(old, new)


def setting_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe how settings differ, by name; empty if they are equal."""
    keys = dict.fromkeys([*there, *here])
    return "; ".join(
        f"{key} {there.get(key)}, here {here.get(key)}" for key in keys if there.get(key) != here.get(key)
    )


def setting_type(kind: Any, name: str) -> Any:
    """The type annotation of a setting, for `coerce`."""
    return type_hints(kind)[name]


def build_settings(table: str, kind: type[S], values: Mapping[str, Any]) -> S:
    """Build a dataclass of settings from a table of a file, checking every value."""
    hints = type_hints(kind)
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise no_such_setting(name, f"[{table}]", known)
    return kind(**{name: coerce(name, value, hints[name]) for name, value in values.items()})


def parse_setting(text: str) -> tuple[str, str, Any]:
    """`"method.skip=none"` → `("method", "skip", None)`."""
    name, equals, value = text.partition("=")
    table, dot, key = name.partition(".")
    tables = ("problem", "method", "training")
    if not (equals and dot and key) or table not in tables:
        hint = did_you_mean(name, [f"{each}.{key or name}" for each in tables])
        if key and table in tables:
            hint = f"; write {name}=VALUE"
        raise UsageError(
            f"{text!r} is not of the form problem.X=…, method.X=… or training.X=…{hint}", field="set"
        )
    return table, key, parse_value(value)


def parse_value(text: str) -> Any:
    """Parse a value from the command line: `none`, `true`, `5`, `0.1` or a word."""
    if text == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter from deeply nested brackets
        return text
