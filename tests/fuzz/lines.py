"""Strategies for command lines with valid, nearly valid and invalid values."""

from __future__ import annotations

from hypothesis import strategies as st

from pathaware.methods import METHODS
from pathaware.training.presets import presets
from tests.fuzz.files import HUGE, TABLES, WORDS

RUN = "RUN"
"""A placeholder for the folder of a trained run."""

numbers = st.sampled_from(["-1", "0", "1", "2", "3", "1.5", "nan", "inf", "-inf", "1e9", "x", "", "٣", *HUGE])
odd = st.sampled_from([*WORDS, "\udcff", "a\udcffb", "-", "--", "1\n2", "\r", "\t"]) | st.text(max_size=6)
# Only names inside the folder of the example.
paths = st.sampled_from(
    [
        "new",
        "new/er",
        "",
        ".",
        "a\0b",
        "\udcff",
        "x" * 300,
        "file",
        "file/in",
        "folder",
        "/proc/nowhere",
        "a\nb",
    ]
)
runs = st.sampled_from([RUN, RUN, RUN, "nowhere", "folder", "file", "a\0b", "x" * 300, "\udcff", ""])
settings = st.one_of(
    st.tuples(
        st.sampled_from([f"{table}.{key}" for table, keys in TABLES.items() for key in keys]), numbers | odd
    ).map("=".join),
    st.sampled_from(["training.rate=[1]", "method.q={}", "training.=1", "=", "training.seed=" + "[" * 9000]),
    odd,
)
TRAIN = {
    "--method": st.sampled_from(["maml", "pamela", "reptile", "mamel"]) | odd,
    "--steps": numbers,
    "--skip": numbers | odd,
    "--rate": numbers,
    "--iterations": numbers,
    "--tasks": numbers,
    "--seed": numbers,
    "--out": paths,
    "--set": settings,
}
EXAMPLES = {"--shots": numbers, "--queries": numbers}
IMAGES = {"--ways": numbers, "--model": odd, "--width": numbers, "--data": odd, "--data-dir": paths}
BENCH = {"--rows": odd, "--only": odd, "--repeats": numbers, "--device": odd, "--threads": numbers}
FOLDER = {"--size": numbers, "--proportions": odd, "--min-images": numbers, "--split-lists": paths}
OPTIONS: dict[str, dict[str, st.SearchStrategy[str]]] = {
    "train sine": {**TRAIN, **EXAMPLES},
    "train glyphs": {**TRAIN, **EXAMPLES, **IMAGES},
    "train folder": {**TRAIN, **EXAMPLES, **IMAGES},
    "train preset": {"--iterations": numbers, "--seed": numbers, "--out": paths, "--set": settings},
    "evaluate": {
        "--split": st.sampled_from(["val", "test", "all", "a\nb"]),
        **dict.fromkeys(("--tasks", "--steps", "--seed"), numbers),
        "--queries": st.sampled_from(["alone", "batch", "joint"]) | odd,
        "--balance": st.sampled_from(["balanced", "dirichlet"]) | odd,
        "--record": paths,
        "--device": odd,
    },
    "plot": {"--out": paths},
    "report": {"--out": paths, "--tasks": numbers},
    "reproduce": {
        "--budget": st.sampled_from(["1s", "10m", "9" * 400 + "d", "-1h", "0s", "٣s", "1h\n"]) | odd,
        **dict.fromkeys(("--iterations", "--seeds", "--tasks", "--together"), numbers),
        "--only": st.sampled_from(["k5-maml", "k10-pamela", "maml"]) | odd,
        "--columns": st.sampled_from(["MSE", "cifar-fs-5shot"]) | odd,
        "--data": st.sampled_from(["glyphs", "cifar-fs"]) | odd,
        "--results": paths,
        "--set": settings,
        "--out": paths,
    },
    "sweep": {
        "--out": paths,
        "--workers": numbers,
        "--devices": st.sampled_from(["cuda:0", "cuda:0,cuda:0", "cpu", ",", "cuda:" + "9" * 5000]) | odd,
        "--split": st.sampled_from(["val", "test", "train"]) | odd,
        "--tasks": numbers,
        "--backend": st.sampled_from(["loky", "dask"]) | odd,
        "--cluster": st.sampled_from(["tcp://127.0.0.1:9", "tcp://[", ":8786"]) | odd,
    },
    "data import": {**FOLDER, "--from": paths, "--layout": odd, "--seed": numbers, "--data-dir": paths},
    "data list": {"--data-dir": paths},
    "data show": {
        **dict.fromkeys(("--ways", "--shots", "--queries", "--seed"), numbers),
        "--split": st.sampled_from(["train", "val"]) | odd,
        "--out": paths,
        "--data-dir": paths,
    },
    "bench": {**BENCH, "--precision": odd, "--json": paths, "--plot": paths},
    "methods": {},
    "export": {
        "--support": paths,
        "--to": st.sampled_from(["onnx", "torch", "safetensors"]) | odd,
        "--out": paths,
        "--device": odd,
    },
    "predict": {
        "--support": paths,
        "--images": paths,
        "--format": st.sampled_from(["csv", "json"]) | odd,
        "--out": paths,
        "--show": paths,
        "--top": numbers,
        "--device": odd,
    },
}
FLAGS = [
    "--json",
    "--inductive",
    "--extend",
    "--no-train",
    "--rotations",
    "--grey",
    "--scaling",
    "--full",
    "--x",
]
NAMED: dict[str, st.SearchStrategy[str]] = {
    "train preset": st.sampled_from([*presets(), "file", "sweep.toml", "x.toml", "\udcff.toml"]) | odd,
    "evaluate": runs,
    "plot": runs,
    "report": runs,
    "export": runs,
    "predict": runs,
    "reproduce": st.sampled_from(
        ["table1", "table3", "table4", "fig4", "fig6", "gradients", "methods", "all"]
    )
    | odd,
    "methods": st.sampled_from([*METHODS, "os:path", "nowhere:METHOD"]) | odd,
    "sweep": st.sampled_from(["sweep.toml", "sweep.toml", "search.toml", "file", "folder"]) | paths,
    "data import": st.sampled_from(["glyphs", "omniglot", "mine", "cifar-fs"]) | odd,
    "data show": st.sampled_from(["glyphs", "glyphs", "mine"]) | odd,
}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(list(OPTIONS)))
    arguments = command.split()
    if command in NAMED:
        arguments += draw(st.lists(NAMED[command], min_size=draw(st.sampled_from([1, 1, 1, 0])), max_size=2))
    if options := OPTIONS[command]:
        for option in draw(st.lists(st.sampled_from(list(options)), max_size=4, unique=True)):
            arguments += [option, draw(options[option])]
    arguments += draw(st.lists(st.sampled_from(FLAGS), max_size=1)) if draw(st.integers(0, 4)) == 0 else []
    return arguments
