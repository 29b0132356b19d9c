"""Write the file, open it as a stranger would, and compare its answers with ours."""

from __future__ import annotations

import copy
import inspect
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from pathaware.core.errors import RunError, UsageError
from pathaware.inference.export.formats import Format, about, format_called
from pathaware.inference.export.scripts import label
from pathaware.inference.trained_model import Adapted

ALLOWED = 1e-4
"""How far a probability in the file may be from ours: rounding is a thousandth of that."""

_RANDOM = 16
_BATCHES = (1, 3)


@dataclass(frozen=True)
class Exported:
    """A file that answered `pictures` as the package does, up to `difference` in any probability."""

    path: Path
    format: str
    bytes: int
    pictures: int
    difference: float


def export(adapted: Adapted, classes: Sequence[str], pixels: Tensor, path: Path, to: str) -> Exported:
    """Write `adapted` to `path`, checked on `pixels [N, C, size, size]` and on random ones.

    The file takes its place when it has passed; what was there before is replaced then, and not earlier.
    """
    format = format_called(to)
    if path.suffix != format.suffix:
        raise UsageError(f"{path} must end in {format.suffix} for --to {to}", field="out")
    format.refuse_if_packages_are_missing()
    # Where every reader of the file can be; a GPU may also round more coarsely than is allowed here.
    adapted = Adapted(copy.deepcopy(adapted.network).cpu(), adapted.pictures)
    with TemporaryDirectory(dir=path.absolute().parent, prefix=".export-") as folder:
        draft = Path(folder) / path.name
        format.write(adapted, about(adapted.pictures, classes), draft)
        checked_on = _pictures(pixels)
        difference = _difference(adapted, format, draft, checked_on)
        if not difference <= ALLOWED:  # nor if it is no number
            raise RunError(
                f"{path}: not written, its probabilities differ by {difference:.1e} from the package's; "
                f"{ALLOWED:.0e} is allowed. Try another of --to"
            )
        os.replace(draft, path)
    return Exported(path, to, path.stat().st_size, len(checked_on), difference)


def _pictures(pixels: Tensor) -> Tensor:
    """Those that are given, and noise, which goes where no picture does."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (_RANDOM, *pixels.shape[1:]), dtype=torch.uint8, generator=generator)
    return torch.cat([pixels.cpu(), noise])


def _difference(adapted: Adapted, format: Format, path: Path, pixels: Tensor) -> float:
    """The largest of any probability, for all pictures at once and for few at a time."""
    _, answer = format.opened(str(path))
    expected = adapted.probabilities(pixels).numpy()
    images = pixels.numpy()
    parts = [slice(None), *(s for n in _BATCHES for s in (slice(n), slice(-n, None)))]
    found = [(answer(images[part]), expected[part]) for part in parts]
    for ours, theirs in found:
        if ours.shape != theirs.shape or ours.dtype != np.float32:
            raise RunError(f"{path.name}: not written, it answers {ours.dtype} {ours.shape}")
    return float(np.max([np.abs(ours - theirs).max() for ours, theirs in found]))


# A script that labels pictures with an exported file and knows nothing of this package.


_IMPORT = "from pathaware.inference.export.scripts.with_onnx import opened\n"
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
        raise UsageError(
            f"{script.name} would hide the module it is called after; give --out", field="script"
        )
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
