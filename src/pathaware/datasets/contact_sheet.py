"""A picture of one episode: a row per class, its support images, then its query images."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image, ImageFont

_CELL, _GAP, _MARGIN, _LABELS, _DIVIDER, _HEAD = 84, 6, 24, 150, 28, 64
_LEAST_WIDTH = 520  # the title needs it
_PAPER, _INK, _FAINT = (250, 249, 246), (34, 34, 38), (128, 126, 120)


def contact_sheet(
    title: str,
    names: Sequence[str],
    support: NDArray[np.uint8],
    query: NDArray[np.uint8],
) -> Image.Image:
    """Draw images `[ways, n, C, H, W]` of an episode, beside the names of its classes."""
    from PIL import Image, ImageDraw

    step = _CELL + _GAP
    query_left = _MARGIN + _LABELS + support.shape[1] * step + _DIVIDER
    width = max(query_left + query.shape[1] * step - _GAP + _MARGIN, _LEAST_WIDTH)
    sheet = Image.new("RGB", (width, _MARGIN + _HEAD + len(names) * step - _GAP + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_MARGIN, _MARGIN - 4), title, fill=_INK, font=_font(17, bold=True))
    headings = ((_MARGIN + _LABELS, "support", support), (query_left, "query", query))
    for left, heading, images in headings:
        pen.text((left, _MARGIN + 38), heading, fill=_FAINT, font=_font(13))
        for row, of_class in enumerate(images):
            for column, image in enumerate(of_class):
                place = (left + column * step, _MARGIN + _HEAD + row * step)
                sheet.paste(_cell(image), place)
    for row, name in enumerate(names):
        middle = _MARGIN + _HEAD + row * step + _CELL // 2
        lines = [line for part in name.split("/") for line in textwrap.wrap(part.replace("_", " "), 18)]
        label = "\n".join(lines[:4])
        pen.multiline_text((_MARGIN, middle), label, fill=_INK, font=_font(13), anchor="lm", spacing=3)
    line = query_left - _GAP // 2 - _DIVIDER // 2
    pen.line([(line, _MARGIN + 38), (line, sheet.height - _MARGIN)], fill=(216, 213, 205), width=1)
    return sheet


def _cell(image: NDArray[np.uint8]) -> Image.Image:
    from PIL import Image

    # Whole multiples keep small images crisp; Lanczos would blur a 28-pixel character.
    factor = max(1, _CELL // image.shape[-1])
    pixels = np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    picture = Image.fromarray(pixels).convert("RGB")
    if picture.width * factor == _CELL:
        return picture.resize((_CELL, _CELL), Image.Resampling.NEAREST)
    return picture.resize((_CELL, _CELL), Image.Resampling.BICUBIC)


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)
