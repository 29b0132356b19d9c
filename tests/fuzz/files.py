"""Strategies for configuration files, valid and broken."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from pathaware.methods import METHODS
from pathaware.training.config import Training
from pathaware.training.problems import PROBLEMS

TABLES: dict[str, list[str]] = {
    "problem": ["name", *(field.name for kind in PROBLEMS.values() for field in fields(kind))],
    "method": ["name", *METHODS["pamela"].settings()],
    "training": [field.name for field in fields(Training)],
}
WORDS = [
    *METHODS,
    *("sine", "classification", "glyphs", "none", "auto", "cpu", "cuda", "cuda:0", "cuda:99999999999"),
    *("meta", "cpu:1", "mps", "loop", "vmap", "on", "off", "per-step", "shared", "parameter", "layer"),
    *("cosine", "bf16", "float64", "conv4", "resnet12", "json:loads", "..x:y", ":", "builtins:dict"),
    *("a\nb", "a\x00b", "\x1b[31m", "", " ", "/", "é", "x" * 3000, "\u2028", "../..", "json:"),
]
# Small, or far beyond what any machine could hold; numbers in between would take too long.
NUMBERS = ["-1", "0", "1", "2", "3", "7", "20", "1e-3", "0.5", "1.5", "-0.0", "inf", "-inf", "nan", "1e308"]
HUGE = ["9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 30, "1" + "0" * 400]
LARGE = ["1000000000000", "0x" + "f" * 5000, "1e999", *HUGE]


def text(words: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(words) | st.text(max_size=8)


scalars = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(LARGE),
    st.sampled_from(["true", "false", "1979-05-27", "07:32:00", "1979-05-27T07:32:00Z", "", "=", "1__0"]),
    # JSON escapes characters beyond 0xFFFF in a way that TOML does not have.
    text(WORDS).map(lambda word: json.dumps(word, ensure_ascii=False).replace("\x7f", "?")),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        inner.map(lambda one: f"{{ low = {one}, high = 3 }}"),
        inner.map(lambda one: f"{{ name = {one} }}"),
    ),
    max_leaves=4,
)
deep = st.sampled_from(["[" * 5000, "[" * 5000 + "]" * 5000, "{a=" * 3000, "1", "[1]"])
settings = st.tuples(
    st.sampled_from([(table, key) for table, keys in TABLES.items() for key in keys]), values | deep
)
extras = st.sampled_from(
    [
        "[extra]\na = 1",
        "[[training]]",
        "preset = 1",
        'preset = "glyphs"',
        "problem = 3",
        "[sweep]",
        "a.b.c = 1",
    ]
)
START = {"problem": {"name": '"sine"'}, "method": {"name": '"pamela"'}, "training": {"iterations": "3"}}
IMAGES = {"problem": {"name": '"classification"', "width": "4"}, "method": {"name": '"maml"'}, "training": {}}


@st.composite
def documents(draw: st.DrawFn, sweep: bool = False) -> str:
    """A valid configuration with some settings changed and perhaps a table added or removed."""
    base = draw(st.sampled_from([START, START, IMAGES]))
    tables: dict[str, dict[str, Any]] = {name: dict(table) for name, table in base.items()}
    for (table, key), value in draw(st.lists(settings, max_size=3)):
        tables[table][key] = value
    if sweep:
        tables["sweep"] = {"training.seed": "[0, 1]"} if draw(st.booleans()) else {}
        for (table, key), value in draw(st.lists(settings, max_size=2)):
            listed = draw(st.booleans())
            tables["sweep"][draw(st.sampled_from([f"{table}.{key}", f'"{table}.{key}"']))] = (
                f"[{value}]" if listed else value
            )
        if draw(st.integers(0, 3)) == 0:
            tables["sweep"] |= {"search": draw(st.sampled_from(['"optuna"', "1", '"grid"'])), "trials": "2"}
    for name in draw(st.lists(st.sampled_from(list(tables)), max_size=1)):
        if draw(st.booleans()):
            del tables[name]
    parts = [
        f"[{name}]\n" + "\n".join(f"{key} = {value}" for key, value in table.items())
        for name, table in tables.items()
    ]
    parts[:0] = draw(st.lists(extras, max_size=1))
    return "\n".join(parts) + "\n"


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[str]) -> bytes:
    """A file with some bytes lost, changed or added."""
    content = bytearray(draw(whole).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 5))] = draw(st.binary(max_size=3))
    return bytes(content)


def contents(sweep: bool = False) -> st.SearchStrategy[bytes]:
    whole = documents(sweep)
    written = whole.map(lambda t: t.encode("utf-8", "surrogatepass"))
    return st.one_of(written, written, written, damaged(whole), st.binary(max_size=50), st.just(b"\xff\xfe"))
