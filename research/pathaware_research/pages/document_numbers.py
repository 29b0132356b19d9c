"""Finds measured numbers in the prose of documents that no record supports.

    python -m pathaware_research.pages.document_numbers .

A number is taken for measured if it has a decimal point or a unit such as %, ms or "times". Whole numbers
without a unit are counts, sizes and settings. Code, links and rendered blocks are left out; the latter come
from records by construction. A measured number must be in one of the document's sources, to the digits it is
printed with, or in `document_numbers.toml`, which gives a reason for every exception. A wrong number with few
digits can still agree with a source by chance.
"""

from __future__ import annotations

import bisect
import fnmatch
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pathaware_research.records import Record, Records, measurements

EXCEPTIONS = Path(__file__).with_suffix(".toml")
UNITS = r"%|×(?! ?[\d])|ms\b|µs\b|s\b|seconds?\b|minutes?\b|hours?\b|times\b|points?\b|MB\b|MiB\b|GB\b|TFLOP"
NUMBER = re.compile(
    r"(?<![\w.,/=#-])(?P<number>\d{1,3}(?:,\d{3})+|\d*\.\d+(?:e-?\d+)?|\d+)(?![\w,]*\d)"
    rf"(?:[ \u00a0]?(?P<unit>{UNITS}))?"
)
OMITTED = (
    r"```.*?```",  # code
    r"<!-- (?P<name>[\w-]+): made by .*?<!-- end of (?P=name) -->",  # rendered
    r"`[^`]*`",
    r"\]\([^)]*\)",
    r"https?://\S+",
    r"arXiv:\S+",
    r"^ {4}.*?$",  # equations
    r"(?i)version \d[\d.]*\d|Python \d[\d.]*\d|PyTorch \d[\d.]*\d|CUDA \d[\d.]*\d|Apache-\d\.\d",
)
RENDERED = re.compile(OMITTED[1], re.DOTALL)
NAMED = re.compile(r"(?<!--json )(?<!--record )results/([\w+./-]+\.json(?:l#[\w+.-]*\w|\b))")
"""Sources that a document names; the omitted ones are made by a command."""
CURVE = 12
"""Longer lists of numbers in records are curves, whose points no sentence is about."""


def documents(root: Path) -> list[Path]:
    """The README and the pages of docs/; pages of methods and of the API are rendered."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def prose(text: str, without_tables: bool = False) -> str:
    """The text of a document whose numbers are checked."""
    for pattern in (*OMITTED, *((r"^\|.*?$",) if without_tables else ())):
        text = re.sub(pattern, " ", text, flags=re.DOTALL | re.MULTILINE)
    return text


def measured(text: str, without_tables: bool = False) -> Iterator[str]:
    """The numbers of a text that must have a record, as printed."""
    for found in NUMBER.finditer(prose(text, without_tables)):
        if "." in found["number"] or found["unit"]:
            yield found["number"]


class Evidence:
    """The numbers that one document may print: those of its own rendered blocks and of its sources.

    Sources are the records that the document names and those that the file of exceptions lists for it, as
    they are and in per cent, and the rendered blocks of other documents that it lists. All of `results/`
    would be no test: among so many numbers almost any other is found by chance.
    """

    def __init__(self, root: Path, document: Path, sources: Iterable[str] = ()) -> None:
        text = document.read_text(encoding="utf-8")
        names = {*NAMED.findall(RENDERED.sub(" ", text)), *sources}
        numbers = _rendered(text)
        for name in sorted(names):
            if name.endswith(".md"):
                numbers += _rendered((root / name).read_text(encoding="utf-8"))
                continue
            records = _records(root / "results", name)
            if not records:
                raise ValueError(f"{document.name} names results/{name}, which does not exist")
            found = _numbers(records)
            numbers += [*found, *(100 * value for value in found)]
        self.sorted = sorted(set(numbers))

    def supports(self, printed: str) -> bool:
        value, decimals = _value(printed), len(printed.partition("e")[0].partition(".")[2])
        half = 0.5 * 10.0**-decimals * (1 + 1e-9)
        index = bisect.bisect_left(self.sorted, value - half)
        return index < len(self.sorted) and self.sorted[index] <= value + half


def _records(results: Path, name: str) -> list[Record]:
    """The records of a name: `timings/bench-cpu.json`, `runs/STUDY.jsonl#RUN`, or a pattern of such names."""
    file, _, run = name.partition("#")
    if not run:
        return list(measurements(results, file.removesuffix(".json")).values())
    runs = Records(Path(file).stem, results)
    return [runs[each] for each in fnmatch.filter(runs, run)]


def _rendered(text: str) -> list[float]:
    found = (n for block in RENDERED.finditer(text) for n in re.findall(r"\d[\d,]*(?:\.\d+)?", block[0]))
    return [_value(number) for number in found if _is_number(number)]


def _value(printed: str) -> float:
    return float(printed.replace(",", ""))


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\d+(,\d{3})*(\.\d+)?", text))


def _numbers(value: Any) -> list[float]:
    """The numbers of a record, without settings and curves."""
    if isinstance(value, dict):
        skipped = ("config", "training_loss", "validation", "settings")
        found = [(key, n) for key, each in value.items() if key not in skipped for n in _numbers(each)]
        return [n for _, n in found] + [n / 1000 for key, n in found if key.endswith("_ms")]  # in seconds
    if isinstance(value, list):
        if len(value) > CURVE and not isinstance(value[0], dict):
            return []
        return [n for each in value for n in _numbers(each)]
    return [abs(float(value))] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def unsupported(root: Path) -> dict[str, list[str]]:
    """Measured numbers without a record or a stated exception, by document."""
    stated = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    found = {}
    for path in documents(root):
        name = path.relative_to(root).as_posix()
        evidence = Evidence(root, path, stated["sources"].get(name, ()))
        allowed = {**stated["everywhere"], **stated.get(name, {})}
        numbers = dict.fromkeys(measured(path.read_text(encoding="utf-8"), name in stated["tables"]))
        missing = [n for n in numbers if n not in allowed and not evidence.supports(n)]
        if missing:
            found[name] = missing
    return found


if __name__ == "__main__":
    missing = unsupported(Path(sys.argv[1]))
    for name, numbers in missing.items():
        print(f"{name}: {', '.join(numbers)}")
    sys.exit(1 if missing else 0)
