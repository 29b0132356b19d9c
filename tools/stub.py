"""Write `pathaware/__init__.pyi`, from which editors and type checkers know the functions of all methods.

python -m tools.stub     after a setting of a method has changed; a test fails if it is out of date
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pathaware
from pathaware.methods import FUNCTIONS, METHODS

STUB = Path(pathaware.__file__).with_suffix(".pyi")
IMPORTS = """\
# Made by `python -m tools.stub`.
from typing import Literal

from torch import nn

from pathaware.core.execution import ExecutionName
from pathaware.core.learner import HeadStart
from pathaware.core.losses import Loss
"""


def text() -> str:
    """The stub: public classes, then a signature for every method."""
    lines = [f"from pathaware.{m} import {n} as {n}" for n, m in pathaware._MODULES.items()]
    functions = [declaration(name, inspect.signature(f)) for name, f in sorted(FUNCTIONS.items())]
    return "\n".join(
        [IMPORTS + "\n".join(sorted(lines, key=str.casefold)), "", "__version__: str", "", *functions, ""]
    )


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
    STUB.write_text(text(), encoding="utf-8")
