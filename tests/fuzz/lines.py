"""Strategies for command lines with valid, nearly valid and invalid values.

They are built from the parameters that the commands declare, so a new command or option is covered by itself.
`VALUES` adds words that get an option past its first check.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from pathaware.cli import command as pathaware
from pathaware.methods import METHODS
from pathaware.training.presets import presets
from tests.fuzz.files import HUGE, TABLES, WORDS

RUN, MODEL, FROZEN, CLASSIFIER, PRETRAINED = "RUN", "MODEL", "FROZEN", "CLASSIFIER", "PRETRAINED"
"""Folders: runs on waves, on images and with a frozen backbone, a saved classifier and a pretraining."""

BACKBONE = "tests.models.residual18:resnet18"

numbers = st.sampled_from(
    ["-1", "0", "1", "2", "3", "0.05", "0.5", "1.5", "nan", "inf", "-inf", "1e9", "x", "", "٣", *HUGE]
)
odd = st.sampled_from([*WORDS, "\udcff", "a\udcffb", "-", "--", "1\n2", "\r", "\t"]) | st.text(max_size=6)
# Only names inside the folder of the example.
KEPT = ["file", "kept.json", "kept.png", "folder"]
NAMES = ["new", "new.json", "new.png", "new/er", ".", "file/in", "folder/in", *KEPT]
paths = st.sampled_from([*NAMES, "", "a\0b", "\udcff", "x" * 300, "/proc/nowhere", "a\nb"])
RUNS = [RUN, RUN, RUN, MODEL, FROZEN, CLASSIFIER, PRETRAINED]
runs = st.sampled_from([*RUNS, "glyphs", "nowhere", "folder", "file", "a\0b", "x" * 300, "\udcff", ""])
images = st.sampled_from(["letters", "letters", "letters/a/0000.png", "folder", "file"]) | paths
settings = st.one_of(
    st.tuples(
        st.sampled_from([f"{table}.{key}" for table, keys in TABLES.items() for key in keys]), numbers | odd
    ).map("=".join),
    st.sampled_from(["training.rate=[1]", "method.q={}", "training.=1", "=", "training.seed=" + "[" * 9000]),
    odd,
)


def some(*words: str) -> st.SearchStrategy[str]:
    return st.sampled_from(words) | odd


VALUES: dict[str, st.SearchStrategy[str]] = {
    "run": runs,
    "runs": runs,
    "resume": runs,
    "teacher": runs,
    "model": some("conv4", "resnet12", "timm:resnet18", BACKBONE, "json:loads", "glyphs", MODEL),
    "weights": st.sampled_from(["weights.safetensors", "weights.safetensors"]) | paths,
    "adapt": some("head", "last-block", "adapters", "all"),
    "views": some("single", "mirror"),
    "refine": some("none", "centre", "means", "sinkhorn", "tim"),
    "head": some("linear", "cosine"),
    "splits": some("train", "train,val", "test", ","),
    "width": some("4", "2,2,2,2", "0", "-1", "2,", "1" * 30),
    "method": some("maml", "pamela", "reptile", "mamel"),
    "name": some("glyphs", "glyphs", "omniglot", "mine", *METHODS, "os:path", "nowhere:METHOD"),
    "preset": some(*presets(), "file", "sweep.toml", "x.toml", "\udcff.toml"),
    "file": st.sampled_from(["sweep.toml", "sweep.toml", "search.toml"]) | paths,
    "targets": some("table1", "table3", "table4", "steps", "fig4", "fig6", "gradients", "methods", "all"),
    "setting": settings
    | some("online.pull=1", "tuning.rate=0.1", "batch=0", "rate=nan", "precision=fp32", "ema=2", "epochs=x"),
    "data": some("glyphs", "shapes", "shapes", "cifar-fs", "mine"),
    "stream": some("sine", "glyphs"),
    "split": some("train", "val", "test", "all"),
    "queries": some("alone", "batch", "joint"),
    "balance": some("balanced", "dirichlet"),
    "budget": some("1s", "10m", "9" * 400 + "d", "-1h", "0s", "٣s", "1h\n"),
    "only": some("k5-maml", "maml", "pathaware", "loop", "online", "scratch"),
    "columns": some("MSE", "cifar-fs-5shot"),
    "rows": some("sine", "glyphs", "tasks", "sine,,glyphs"),
    "device": some("auto", "cpu", "cuda", "cuda:9"),
    "devices": some("cuda:0", "cuda:0,cuda:0", "cpu", ",", "cuda:" + "9" * 5000),
    "backend": some("loky", "dask"),
    "cluster": some("tcp://127.0.0.1:9", "tcp://[", ":8786"),
    "to": some("onnx", "torch", "safetensors"),
    "format": some("csv", "json", "table"),
    "layout": some("folder", "omniglot"),
    "proportions": some("0.6,0.2,0.2", "1,1", "nan,1,1", "-1,1,1", "1e308,1e308,1"),
    # No name that would be looked up in the network.
    "host": st.sampled_from(["127.0.0.1", "::1", "a\0b", "x" * 300, "", "\udcff"]),
    "support": images,
    "folder": images,
    "images": images,
    "source": images,
}


def leaves(command: Any = pathaware, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The commands that do something, with the words that call them."""
    if not hasattr(command, "commands") or (path and command.invoke_without_command):
        yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from leaves(below, (*path, name))


COMMANDS = dict(leaves())


def types_of(command: Any) -> dict[str, set[Any]]:
    """The types that the function of a command declares for each parameter, `int | None` as int and None."""

    def parts(hint: Any) -> set[Any]:
        return {hint}.union(*map(parts, get_args(hint)))

    return {name: parts(hint) for name, hint in get_type_hints(command.callback).items()}


def values(name: str, types: set[Any]) -> st.SearchStrategy[str]:
    """Values of an option or argument: by its type if that is a number, then by its name."""
    if types & {int, float}:
        return numbers
    return VALUES.get(name, paths if Path in types else odd)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    path = draw(st.sampled_from(list(COMMANDS)))
    arguments, types = list(path), types_of(COMMANDS[path])
    parameters = [p for p in COMMANDS[path].params if p.name != "help"]
    positional = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    for parameter in positional:
        least = draw(st.sampled_from([1, 1, 1, 0]))
        arguments += draw(
            st.lists(
                values(parameter.name, types[parameter.name]),
                min_size=least,
                max_size=2 if parameter.nargs < 0 else 1,
            )
        )
    needed = [p for p in options if p.required and draw(st.integers(0, 9))]
    others = [p for p in options if not p.required]
    chosen = draw(st.lists(st.sampled_from(others), max_size=4, unique_by=id)) if others else []
    for parameter in needed + chosen:
        name = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
        arguments += (
            [name] if parameter.is_flag else [name, draw(values(parameter.name, types[parameter.name]))]
        )
    if draw(st.integers(0, 19)) == 0:
        arguments.append(draw(st.sampled_from(["--json", "--x", "--replace", "extra"])))
    return arguments


PICTURES = "--support letters --images letters"
NEWER = [
    "learn letters --model MODEL --out new --show new.png --json",
    "learn letters --model MODEL --hold-out 0.5 --seed 1 --out CLASSIFIER --replace",
    f"learn letters --model {BACKBONE} --weights weights.safetensors --size 32 --out new",
    "models glyphs --json",
    f"suggest MODEL {PICTURES} --count 2 --json",
    "suggest CLASSIFIER --images letters",
    f"predict FROZEN {PICTURES} --unknown 0.5 --out new.json --show new.png --top 1",
    f"predict MODEL {PICTURES} --views mirror --score --out new.csv",
    "predict CLASSIFIER --images letters --score --why --format csv",
    "evaluate MODEL --tasks 2 --open-set --json",
    "evaluate FROZEN --tasks 2 --ways 3 --shots 2 --baselines --record new.json",
    "evaluate MODEL --tasks 2 --refine sinkhorn --views mirror --show new.png",
    "evaluate MODEL --tasks 2 --refine tim --balance dirichlet --queries joint",
    "evaluate MODEL --tasks 2 --snapshots",
    "evaluate MODEL --tasks 2 --calibrate --split val",
    "export MODEL --learner --ways 2 --shots 1 --out new.onnx",
    "export CLASSIFIER --to safetensors --script --out new.safetensors --json",
    "pretrain shapes --epochs 1 --width 4 --crop 1 --cutmix 0.5 --rotation 0.5 --out new --json",
    "pretrain shapes --head cosine --teacher PRETRAINED --minutes 0.001 --set precision=fp32 --out new",
    "pretrain --resume PRETRAINED",
    f"train folder --data shapes --ways 2 --shots 1 --model {BACKBONE} --weights weights.safetensors "
    "--adapt head --method proto-pamela --out new",
    "train folder --data shapes --ways 2 --shots 1 --model resnet12 --adapt adapters --set "
    "problem.size=20 --set problem.widths=2,2,2,2 --iterations 2 --out new",
    "train folder --data shapes --ways 2 --shots 1 --width 4 --set training.start=PRETRAINED --out new",
    "pretrain shapes --splits train,val --width 2,2,2,2 --model resnet12 --out new",
    "serve CLASSIFIER --port 0",
]
"""Command lines that work, of commands and options that came after the others."""


@st.composite
def varied(draw: st.DrawFn) -> list[str]:
    """A command line that works, with up to three words or options changed, left out or added."""
    words = draw(st.sampled_from(NEWER)).split()
    path = next(path for path in COMMANDS if tuple(words[: len(path)]) == path and path != ("train",))
    arguments, types = words[len(path) :], types_of(COMMANDS[path])
    options = [p for p in COMMANDS[path].params if p.param_type_name == "option" and p.name != "help"]
    known = {name: p for p in options for name in p.opts}
    for how in draw(st.lists(st.sampled_from(["value", "value", "drop", "add", "add"]), max_size=3)):
        at = draw(st.integers(0, max(0, len(arguments) - 1)))
        before = known.get(arguments[at - 1]) if arguments and at else None
        if how == "drop" and arguments:
            del arguments[at]
        elif how == "value" and before is not None and not before.is_flag:
            arguments[at] = draw(values(before.name, types[before.name]))
        elif how == "value" and arguments and arguments[at] not in known:
            arguments[at] = draw(runs | images)
        else:
            name = draw(st.sampled_from([name for name in known if name.startswith("--")]))
            given = [] if known[name].is_flag else [draw(values(known[name].name, types[known[name].name]))]
            arguments += [name, *given]
    return [*path, *arguments]
