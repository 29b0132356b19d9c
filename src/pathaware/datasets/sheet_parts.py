"""What sheets of pictures are drawn with: cells, lettering, colours."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image, ImageFont

CELL, GAP, MARGIN = 84, 6, 24
PAPER, INK, FAINT, RULE = (250, 249, 246), (34, 34, 38), (128, 126, 120), (216, 213, 205)


def cell(image: NDArray[np.uint8], side: int = CELL) -> Image.Image:
    """A picture `[C, H, W]` as a square of `side` pixels."""
    from PIL import Image

    # Whole multiples keep small images crisp; Lanczos would blur a 28-pixel character.
    factor = max(1, side // image.shape[-1])
    pixels = np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    picture = Image.fromarray(pixels).convert("RGB")
    if picture.width * factor == side:
        return picture.resize((side, side), Image.Resampling.NEAREST)
    return picture.resize((side, side), Image.Resampling.BICUBIC)


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def fitted(text: str, width: int, lettering: ImageFont.FreeTypeFont) -> str:
    """As much of a line as fits into `width` pixels: its two ends, since names that differ often end so."""
    shown = "".join(c if c.isprintable() else "�" for c in text)
    if lettering.getlength(shown) <= width:
        return shown
    kept = len(shown)
    while kept and lettering.getlength(_shortened(shown, kept)) > width:
        kept -= 1
    return _shortened(shown, kept)


def _shortened(text: str, kept: int) -> str:
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
