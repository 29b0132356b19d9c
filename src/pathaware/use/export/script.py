"""A script that labels pictures with an exported file and knows nothing of this package."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

from pathaware.errors import UsageError
from pathaware.use.export.formats import format_called
from pathaware.use.export.scripts import label

_IMPORT = "from pathaware.use.export.scripts.with_onnx import opened\n"
_PACKAGES = {
    "onnx": "numpy, pillow and onnxruntime",
    "torch": "numpy, pillow and torch",
    "safetensors": "numpy, pillow, torch and safetensors",
}
_IMPORTED = {"numpy", "PIL", "onnxruntime", "torch", "safetensors"}


def script_beside(path: Path) -> Path:
    """Where the script of an exported file goes."""
    script = path.with_suffix(".py")
    if script.stem in _IMPORTED | sys.stdlib_module_names:
        raise UsageError(f"--script: {script.name} would hide the module it is called after; give --out")
    return script


def write_script(path: Path, to: str) -> Path:
    """The script `label`, with its way to open a file replaced by that of the format."""
    script = script_beside(path)
    format = format_called(to)
    text = inspect.getsource(label)
    plain = re.fullmatch(r"[\w. -]+", path.name)  # others could end the string they are put into
    for old, new in (
        (_IMPORT, f"\n{inspect.getsource(format.opened)}\n"),
        ('"model.onnx"', f'"{path.name}"' if plain else repr(path.name)),
        ("label.py", script.name if plain else "label.py"),
        ("numpy, pillow and onnxruntime", _PACKAGES[to]),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    script.write_text(re.sub(r"  # (type: ignore|noqa).*", "", text), encoding="utf-8")
    return script
