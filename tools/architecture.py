"""The architecture of pathaware: its packages, the imports between them, and bounds on its size.

python -m tools.architecture            print every number: before the package had this plan, now, and wanted
python -m tools.architecture --entered  also list the files that `pathaware train glyphs` enters
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import FunctionType

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/pathaware"

PACKAGES = {
    "core": ("learners, paths, rules, heads, meta-gradients, the flat parameter vector", "learner.py"),
    "models": ("Conv-4, ResNet-12, MLP, inserting layers, a network's graph", "networks.py"),
    "engine": (
        "optional, loaded by name: batched layers, hand-written derivatives, Triton kernels, CUDA graphs",
        "batched_execution.py",
    ),
    "data": ("importers, the packed image store, image and sine tasks", "store.py"),
    "methods": ("one file per paper: citation, equations, class, `METHOD`", "pamela.py"),
    "training": ("configuration, problems, the training loop, evaluation, run folders", "loop.py"),
    "online": ("the paper's Algorithm 2 and its buffer", "learner.py"),
    "inference": ("trained models, estimators, class folders, export, shipped models", "trained_model.py"),
    "serve": ("the web page and its JSON API", "app.py"),
    "sweep": ("plans of many runs, worker processes and clusters, intervals over seeds", "run_store.py"),
    "report": ("the page of a run, its figures and tables", "run_report.py"),
    "cli": ("one command per file; the only place that knows option names", "train.py"),
}
"""Package → what is in it, and the file to read first."""

MAY_IMPORT = {
    "core": set(),
    "models": {"core"},
    "engine": {"core", "models"},
    "data": {"core"},
    "methods": {"core", "models"},
    "training": {"core", "models", "data", "methods"},
    "online": {"core", "methods"},
    "inference": {"core", "models", "data", "methods", "training"},
    "serve": {"core", "data", "inference"},
    "sweep": {"core", "data", "methods", "training"},
    "report": {"core", "data", "methods", "training"},
    "cli": {"core", "data", "methods", "training", "online", "inference", "serve", "sweep", "report"},
}
"""The packages that a package may import, at the top of a file or inside a function."""

BOUNDS = {
    "lines of src": 37_100,
    "entries at the top": 15,
    "import levels": 6,
    "names of files used twice": 5,
    "members of Rule": 10,
    "members of Head": 8,
    "verbs of a learner": 14,
    "learners built by train": 1,
    "settings": 87,
    "lines of research in src": 0,
    "imports of the engine from core and methods": 0,
    "training loops": 1,
    "functions that train": 3,
    "files in results": 80,
    "lines of a release in CHANGELOG.md": 42,
}
"""The most that each number may be. The changelog's count includes the heading and an empty line."""

BEFORE = {
    "lines of src": 40_528,
    "entries at the top": 14,
    "import levels": 6,
    "names of files used twice": 10,
    "members of Rule": 16,
    "members of Head": 13,
    "verbs of a learner": 15,
    "learners built by train": 3,
    "settings": 99,
    "lines of research in src": 4_009,
    "imports of the engine from core and methods": 6,
    "training loops": 3,
    "functions that train": 9,
    "files in results": 1_002,
    "lines of a release in CHANGELOG.md": 374,
    "lines of tests": 31_090,
    "names at the top": 14,
}
"""The same numbers at commit 11f14abc."""

WANTED = {"lines of src": 36_000, "verbs of a learner": 14, "lines of tests": 27_000, "names at the top": 46}
"""The goal where it is not the bound; of names at the top, at least."""


def package(path: Path) -> str:
    """The package a file belongs to; a file at the top counts as a package."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path, *, lazy: bool) -> Iterator[str]:
    """The modules of this package that a file imports; with `lazy` also inside functions."""
    pending: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
            if node.module == "pathaware":  # `from pathaware import data` imports a package
                names = [f"pathaware.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        yield from (name for name in names if name.partition(".")[0] == "pathaware")
        pending.extend(ast.iter_child_nodes(node))


def arrows(*, lazy: bool) -> dict[tuple[str, str], list[str]]:
    """(package, imported package) → the imports, as `file: module`."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in files():
        for module in imports(path, lazy=lazy):
            there = module.split(".")[1] if "." in module else "__init__"
            if there not in (here := package(path), *_FREE):
                found.setdefault((here, there), []).append(f"{path.relative_to(PACKAGE)}: {module}")
    return found


_FREE = ("__init__",)


def against_the_rule() -> list[str]:
    """Imports that `MAY_IMPORT` does not allow."""
    return [
        line
        for (here, there), lines in arrows(lazy=True).items()
        if here in MAY_IMPORT and there not in MAY_IMPORT[here]
        for line in lines
    ]


def lines() -> int:
    return sum(map(_lines, files()))


def _lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n")


def entries() -> list[str]:
    names = {path.name.replace(".pyi", ".py") for path in PACKAGE.iterdir()}
    return sorted(names - {"__pycache__"})


def levels() -> int:
    """The length of the longest chain of imports between the entries at the top of the package."""
    after: dict[str, set[str]] = {}
    for here, there in arrows(lazy=False):
        after.setdefault(here, set()).add(there)

    @cache
    def depth(entry: str) -> int:
        return 1 + max((depth(other) for other in after.get(entry, ())), default=0)

    return max(depth(entry) for entry in {package(path) for path in files()})


def twice() -> list[str]:
    """Names that more than one file has, apart from those of commands and packages."""
    stems = [path.stem for path in files() if package(path) != "cli" and path.stem != "__init__"]
    return sorted({stem for stem in stems if stems.count(stem) > 1})


def members(kind: type) -> list[str]:
    """The public names that a class defines: methods, properties and flags."""
    return sorted(name for name in vars(kind) if not name.startswith("_") and name != "forward")


def verbs(kind: type) -> list[str]:
    """The public methods and properties that a class defines."""
    return [name for name in members(kind) if isinstance(vars(kind)[name], FunctionType | property)]


def loops() -> list[str]:
    """The classes that take a training from step to step."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (PACKAGE / "training").glob("*.py"))
    kinds = (node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return [kind.name for kind in kinds if any(getattr(part, "name", "") == "advance" for part in kind.body)]


def trainers() -> list[str]:
    """The public functions of `training` that train, fit, pretrain or resume."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (PACKAGE / "training").glob("*.py"))
    names = (node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef))
    return [name for name in names if name.partition("_")[0] in ("train", "fit", "pretrain", "resume")]


def release_lines() -> int:
    """The number of lines of the longest release in CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    return max(part.count("\n") for part in text.split("\n## ")[1:])


def numbers() -> dict[str, int]:
    """Everything that has a bound, apart from what a training enters."""
    from pathaware.core.few_shot import FewShotLearner
    from pathaware.core.head import Head
    from pathaware.core.rule import Rule

    return {
        "lines of src": lines(),
        "entries at the top": len(entries()),
        "import levels": levels(),
        "names of files used twice": len(twice()),
        "members of Rule": len(members(Rule)),
        "members of Head": len(members(Head)),
        "verbs of a learner": len(verbs(FewShotLearner)),
        "settings": sum(map(len, settings().values())),
        "lines of research in src": sum(map(_lines, PACKAGE.glob("experiments/**/*.py"))),
        "imports of the engine from core and methods": sum(
            len(arrows(lazy=True).get((here, "engine"), ())) for here in ("core", "methods")
        ),
        "training loops": len(loops()),
        "functions that train": len(trainers()),
        "files in results": sum(path.is_file() for path in (ROOT / "results").rglob("*")),
        "lines of a release in CHANGELOG.md": release_lines(),
    }


def settings() -> dict[str, list[str]]:
    """Setting → the classes that define it. A subclass with another default does not define it again."""
    from pathaware.training import settings as module

    found: dict[str, list[str]] = {}
    for kind in vars(module).values():
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == module.__name__:
            inherited = {name for base in kind.__mro__[1:] for name in vars(base).get("__annotations__", ())}
            for name in vars(kind).get("__annotations__", {}).keys() - inherited:
                found.setdefault(name, []).append(kind.__name__)
    return found


_TRACER = """
import json, sys, threading
from pathlib import Path
root, seen, built = sys.argv.pop(1), set(), []
def enter(frame, event, _):
    code = frame.f_code  # functions only: class bodies and modules have no optimised locals
    if event == "call" and code.co_flags & 1 and code.co_name[0] != "<" and code.co_filename.startswith(root):
        seen.add(code.co_filename)
        if code.co_name == "build" and code.co_filename.endswith("meta_training.py"):
            built.append(1)
sys.argv[0] = "pathaware"
from pathaware.cli import main
from pathaware.data import open_store
from pathaware.training.problems import PROBLEMS
import torch._dynamo  # by every optimiser; slow to import while profiled
open_store("glyphs")  # drawing them is not part of training
for problem in PROBLEMS.values():
    problem.evaluation_tasks = 2  # many would take long and enter no other file
sys.setprofile(enter); threading.setprofile(enter)
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.setprofile(None)
print(json.dumps([sorted(seen), len(built)]))
"""


def traced(*arguments: str) -> tuple[list[str], int]:
    """The files of the package in which a command runs a function, and the number of learners it builds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _TRACER, str(PACKAGE), *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found, built = json.loads(done.stdout.splitlines()[-1])
    return [str(Path(name).relative_to(PACKAGE)) for name in found], built


@cache
def traced_training() -> tuple[list[str], int]:
    small = ("--set", "problem.width=4", "--set", "problem.queries=2", "--set", "training.validate=0")
    return traced("train", "glyphs", "--iterations", "2", *small)


def package_map() -> str:
    """The packages in layers, the highest first, and a table of what each contains and imports.

    An import that follows from others (a → b → c) is left out.
    """
    after = {here: set[str]() for here in PACKAGES}
    for here, there in arrows(lazy=True):
        if {here, there} <= set(PACKAGES):
            after[here].add(there)

    @cache
    def reached(here: str) -> frozenset[str]:
        return frozenset(after[here]).union(*(reached(there) for there in after[here]))

    @cache
    def height(here: str) -> int:
        return 1 + max(map(height, after[here]), default=0)

    layers = [[name for name in PACKAGES if height(name) == level] for level in range(height("cli"), 0, -1)]
    widest = max(len("   ".join(layer)) for layer in layers)
    lines = ["```text", *("   ".join(layer).center(widest).rstrip() for layer in layers), "```", ""]
    lines += ["| package | what is in it | imports | start reading at |", "| --- | --- | --- | --- |"]
    for name, (what, first) in PACKAGES.items():
        direct = [there for there in PACKAGES if there in after[name] - _indirect(after[name], reached)]
        lines.append(f"| `{name}` | {what} | {', '.join(direct) or '–'} | `{first}` |")
    return "\n".join(lines)


def _indirect(imported: set[str], reached: Callable[[str], frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*map(reached, imported))


def main() -> None:
    import pathaware

    training, built = traced_training()
    now = {
        **numbers(),
        "learners built by train": built,
        "lines of tests": sum(map(_lines, (ROOT / "tests").rglob("*.py"))),
        "names at the top": len(vars(pathaware)["__all__"]),
    }
    print(f"{'':44} {'before':>7} {'now':>7} {'wanted':>7}")
    for name, number in now.items():
        print(f"{name:44} {BEFORE[name]:7,} {number:7,} {WANTED.get(name, BOUNDS.get(name, 0)):7,}")
    if "--entered" in sys.argv:
        print("\n".join(training))


if __name__ == "__main__":
    main()
