"""Sheets of images: cells, lettering and colours, and a sheet that shows one episode."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image, ImageFont

CELL, GAP, MARGIN = 84, 6, 24
PAPER, INK, FAINT, RULE = (250, 249, 246), (34, 34, 38), (128, 126, 120), (216, 213, 205)
_LABELS, _DIVIDER, _HEAD = 150, 28, 64
_MIN_WIDTH = 520  # room for the title


def cell(image: NDArray[np.uint8], side: int = CELL) -> Image.Image:
    """Scale an image `[C, H, W]` to a square of `side` pixels."""
    from PIL import Image

    # Whole multiples keep small images crisp; Lanczos would blur a 28-pixel character.
    factor = max(1, side // image.shape[-1])
    pixels = np.ascontiguousarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))
    scaled = Image.fromarray(pixels).convert("RGB")
    if scaled.width * factor == side:
        return scaled.resize((side, side), Image.Resampling.NEAREST)
    return scaled.resize((side, side), Image.Resampling.BICUBIC)


def font(size: int, bold: bool = False, text: str = "") -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which ships with matplotlib, or an installed font that has more of the text."""
    return _load(_font_file(_needed(text), bold), size)


def undrawable(texts: Iterable[str]) -> str:
    """The characters of these texts that the font of their text lacks."""
    found = {c for text in texts for c in _needed(text) - _characters(_font_file(_needed(text), False))}
    return "".join(sorted(found))


def _needed(text: str) -> frozenset[str]:
    return frozenset(c for c in text if c.isprintable() and not c.isspace())


@lru_cache(maxsize=1024)
def _font_file(needed: frozenset[str], bold: bool) -> str:
    """The file of a font that has all these characters, or else most of them."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    best = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name)
    missing = len(needed - _characters(best))
    for path in _installed() if missing else ():
        lacking = len(needed - _characters(path))
        if lacking < missing:
            best, missing = path, lacking
            if not missing:
                break
    return best


@cache
def _installed() -> list[str]:
    from matplotlib.font_manager import fontManager

    # The font of last resort has a box for every character. Upright fonts of normal weight come first.
    fonts = [each for each in fontManager.ttflist if "Last Resort" not in each.name]
    fonts.sort(key=lambda each: (each.style != "normal", str(each.weight) not in ("400", "normal")))
    return [each.fname for each in fonts]


@cache
def _characters(path: str) -> frozenset[str]:
    """The characters that a font has; none if Pillow cannot draw with it, as with bitmap fonts."""
    from matplotlib.ft2font import FT2Font

    try:
        _load(path, 12)
        return frozenset(map(chr, FT2Font(path).get_charmap()))
    except (OSError, RuntimeError, ValueError):
        return frozenset()


@cache
def _load(path: str, size: int) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(path, size)


def fitted(text: str, width: int, lettering: ImageFont.FreeTypeFont) -> str:
    """Shorten a line to `width` pixels by cutting its middle: similar names often differ at the end."""
    shown = "".join(c if c.isprintable() else "�" for c in text)
    if lettering.getlength(shown) <= width:
        return shown
    kept = len(shown)
    while kept and lettering.getlength(_shortened(shown, kept)) > width:
        kept -= 1
    return _shortened(shown, kept)


def _shortened(text: str, kept: int) -> str:
    return f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"


def contact_sheet(
    title: str,
    names: Sequence[str],
    support: NDArray[np.uint8],
    query: NDArray[np.uint8],
) -> Image.Image:
    """Draw an episode, one row per class: its name, its support images, its query images.

    Both are `[ways, n, C, H, W]`.
    """
    from PIL import Image, ImageDraw

    step = CELL + GAP
    query_left = MARGIN + _LABELS + support.shape[1] * step + _DIVIDER
    width = max(query_left + query.shape[1] * step - GAP + MARGIN, _MIN_WIDTH)
    sheet = Image.new("RGB", (width, MARGIN + _HEAD + len(names) * step - GAP + MARGIN), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((MARGIN, MARGIN - 4), title, fill=INK, font=font(17, bold=True))
    headings = ((MARGIN + _LABELS, "support", support), (query_left, "query", query))
    for left, heading, images in headings:
        pen.text((left, MARGIN + 38), heading, fill=FAINT, font=font(13))
        for row, of_class in enumerate(images):
            for column, image in enumerate(of_class):
                position = (left + column * step, MARGIN + _HEAD + row * step)
                sheet.paste(cell(image), position)
    for row, name in enumerate(names):
        middle = MARGIN + _HEAD + row * step + CELL // 2
        lines = [line for part in name.split("/") for line in textwrap.wrap(part.replace("_", " "), 18)]
        label = "\n".join(lines[:4])
        letters = font(13, text=label)
        pen.multiline_text((MARGIN, middle), label, fill=INK, font=letters, anchor="lm", spacing=3)
    line = query_left - GAP // 2 - _DIVIDER // 2
    pen.line([(line, MARGIN + 38), (line, sheet.height - MARGIN)], fill=RULE, width=1)
    return sheet
