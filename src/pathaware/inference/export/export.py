"""Write an adapted network to a file, check the file against the package, and write a script that uses it."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pathaware.core.errors import RunError, UsageError
from pathaware.core.writing import draft_folder, move, replace_file
from pathaware.inference.export.formats import Format, get_format, metadata
from pathaware.inference.trained_model import AdaptedClassifier

TOLERANCE = 1e-4
"""Largest allowed difference of a probability; rounding errors are about a thousandth of it."""

_RANDOM_IMAGES = 16
_BATCHES = (1, 3)


@dataclass(frozen=True)
class Exported:
    """A file whose probabilities for `images` images differ by at most `difference` from the package's."""

    path: Path
    format: str
    bytes: int
    images: int
    difference: float


def export(
    adapted: AdaptedClassifier, classes: Sequence[str], pixels: Tensor, path: Path, to: str
) -> Exported:
    """Write `adapted` to `path`, checked on `pixels [N, C, size, size]` and on random images.

    The file appears at `path`, replacing an earlier one, only after it has passed the check.
    """
    format = get_format(to)
    if path.suffix != format.suffix:
        raise UsageError(f"{path} must end in {format.suffix} for the format {to}", field="out")
    format.require_packages()
    # On the CPU, which every reader of the file has; a GPU may also round more coarsely than is allowed.
    adapted = replace(adapted, network=copy.deepcopy(adapted.network).cpu())
    with draft_folder(path.parent) as folder:
        draft = folder / path.name
        format.write(adapted, metadata(adapted.image_input, classes), draft)
        checked = _with_noise(pixels)
        difference = _difference(adapted, format, draft, checked)
        if not difference <= TOLERANCE:  # also true for nan
            raise RunError(
                f"{path}: not written, its probabilities differ by {difference:.1e} from the package's; "
                f"{TOLERANCE:.0e} is allowed. Try another format"
            )
        move(draft, path, path.parent)
    return Exported(path, to, path.stat().st_size, len(checked), difference)


def _with_noise(pixels: Tensor) -> Tensor:
    """Append random images, which reach activations that real images do not."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (_RANDOM_IMAGES, *pixels.shape[1:]), dtype=torch.uint8, generator=generator)
    return torch.cat([pixels.cpu(), noise])


def _difference(adapted: AdaptedClassifier, format: Format, path: Path, pixels: Tensor) -> float:
    """Return the largest difference of any probability, for all images at once and in small batches."""
    _, predict = format.open(str(path))
    expected = adapted.probabilities(pixels).numpy()
    images = pixels.numpy()
    parts = [slice(None), *(s for n in _BATCHES for s in (slice(n), slice(-n, None)))]
    results = [(predict(images[part]), expected[part]) for part in parts]
    for actual, reference in results:
        if actual.shape != reference.shape or actual.dtype != np.float32:
            raise RunError(f"{path.name}: not written, its output is {actual.dtype} {actual.shape}")
    return float(np.max([np.abs(actual - reference).max() for actual, reference in results]))


_PACKAGES = {
    "onnx": "numpy, pillow and onnxruntime",
    "torch": "numpy, pillow and torch",
    "safetensors": "numpy, pillow, torch and safetensors",
}
_IMPORTED = {"numpy", "PIL", "onnxruntime", "torch", "safetensors"}


def script_path(path: Path) -> Path:
    """Return the path of an exported file's script."""
    script = path.with_suffix(".py")
    if script.stem in _IMPORTED | sys.stdlib_module_names:
        raise UsageError(
            f"{script.name} would hide the module of the same name; choose another file name", field="script"
        )
    return script


def write_script(path: Path, to: str) -> Path:
    """Write a script beside an exported file that labels images with it, without this package."""
    import jinja2

    script = script_path(path)
    template = jinja2.Template(
        (files("pathaware.inference.export") / "label.py.jinja").read_text("utf-8"),
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    plain = re.fullmatch(r"[\w. -]+", path.name)  # other names could end the docstring
    text = template.render(
        format=get_format(to).name,
        packages=_PACKAGES[to],
        script=script.name if plain else "label.py",
        model=f'"{path.name}"' if plain else repr(path.name),
    )
    replace_file(script, text)
    return script
