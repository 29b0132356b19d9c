"""A picture of one episode: a row per class, its support images, then its query images."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pathaware.datasets.sheet_parts import CELL, FAINT, GAP, INK, MARGIN, PAPER, RULE, cell, font

if TYPE_CHECKING:
    from PIL import Image

_LABELS, _DIVIDER, _HEAD = 150, 28, 64
_LEAST_WIDTH = 520  # the title needs it


def contact_sheet(
    title: str,
    names: Sequence[str],
    support: NDArray[np.uint8],
    query: NDArray[np.uint8],
) -> Image.Image:
    """Draw images `[ways, n, C, H, W]` of an episode, beside the names of its classes."""
    from PIL import Image, ImageDraw

    step = CELL + GAP
    query_left = MARGIN + _LABELS + support.shape[1] * step + _DIVIDER
    width = max(query_left + query.shape[1] * step - GAP + MARGIN, _LEAST_WIDTH)
    sheet = Image.new("RGB", (width, MARGIN + _HEAD + len(names) * step - GAP + MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN - 4), title, fill=INK, font=font(17, bold=True))
    headings = ((MARGIN + _LABELS, "support", support), (query_left, "query", query))
    for left, heading, images in headings:
        pen.text((left, MARGIN + 38), heading, fill=FAINT, font=font(13))
        for row, of_class in enumerate(images):
            for column, image in enumerate(of_class):
                place = (left + column * step, MARGIN + _HEAD + row * step)
                sheet.paste(cell(image), place)
    for row, name in enumerate(names):
        middle = MARGIN + _HEAD + row * step + CELL // 2
        lines = [line for part in name.split("/") for line in textwrap.wrap(part.replace("_", " "), 18)]
        label = "\n".join(lines[:4])
        pen.multiline_text((MARGIN, middle), label, fill=INK, font=font(13), anchor="lm", spacing=3)
    line = query_left - GAP // 2 - _DIVIDER // 2
    pen.line([(line, MARGIN + 38), (line, sheet.height - MARGIN)], fill=RULE, width=1)
    return sheet
