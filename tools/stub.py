"""Write `__init__.pyi` of the packages whose names are imported on first use, for editors and type checkers.

python -m tools.stub     after a setting of a method has changed; a test fails if one is out of date
"""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pathaware
from pathaware.methods import FUNCTIONS, METHODS

HEADER = "# Made by `python -m tools.stub`.\n"
IMPORTS = """\
from typing import Literal

from torch import nn

from pathaware.core.execution import ExecutionName
from pathaware.core.learner import HeadStart
from pathaware.core.losses import Loss
"""


def stubs() -> dict[Path, str]:
    """The text of every stub."""
    root = Path(pathaware.__file__).parent
    found = {root / "__init__.pyi": text()}
    for package in ("core", "inference", "training"):
        module = import_module(f"pathaware.{package}")
        more = ["VERSION: str"] if package == "core" else []
        lines = [HEADER + imports(f"pathaware.{package}", module._PUBLIC), *more, ""]
        found[root / package / "__init__.pyi"] = "\n".join(lines)
    return found


def imports(package: str, public: dict[str, str]) -> str:
    lines = [f"from {package}.{m} import {n} as {n}" for m, names in public.items() for n in names.split()]
    return "\n".join(sorted(lines, key=str.casefold))


def text() -> str:
    """The stub of `pathaware`: public classes, then a signature for every method."""
    functions = [declaration(name, inspect.signature(f)) for name, f in sorted(FUNCTIONS.items())]
    public = imports("pathaware", {**pathaware._PUBLIC, **pathaware._RULES})
    more = ["", "METHOD_FILES: tuple[str, ...]", "__version__: str", ""]
    return "\n".join([HEADER + IMPORTS + public, *more, *functions, ""])


def declaration(name: str, signature: inspect.Signature) -> str:
    settings = list(signature.parameters.values())[2:]
    typed = [f"{p.name}: {annotation(p.annotation)} = {p.default!r}".replace("'", '"') for p in settings]
    arguments = ["network: nn.Module", "loss: Loss", "*", *typed]
    inside = "".join(f"    {argument},\n" for argument in arguments)
    method = METHODS[next(known for known, m in METHODS.items() if m.function_name == name)]
    doc = f'"""{method.summary[0].upper()}{method.summary[1:]} ({method.paper})."""'
    return f"def {name}(\n{inside}) -> {signature.return_annotation.__name__}:\n    {doc}\n"


def annotation(hint: object) -> str:
    if isinstance(hint, str):
        return hint
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


if __name__ == "__main__":
    for path, content in stubs().items():
        path.write_text(content, encoding="utf-8")
