"""Glyphs: a data set that needs no download, drawn with the fonts that ship with matplotlib.

Characters of several scripts, drawn in varying fonts and stroke widths with random distortion; whole scripts
are held out for validation and test. Drawing takes seconds, and the result is an ordinary store.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pathaware.core.errors import UsageError
from pathaware.data.importers.source import class_lists
from pathaware.data.importing import PartialStore, in_memory
from pathaware.data.pixels import CHARACTER_28
from pathaware.data.store import ImageStore, Split

if TYPE_CHECKING:
    from PIL import Image, ImageFont

DRAWINGS = 20
SEED = 28
# These two have every class; the others add variety where they have the character. No italics: in some
# scripts they are different letters, and the shear below slants characters anyway.
REQUIRED = ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf")
FONTS = (*REQUIRED, "DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf", "DejaVuSansMono.ttf", "STIXGeneral.ttf")
_CANVAS = 2 * CHARACTER_28.size  # drawn at twice the size and averaged for smooth edges
_SOURCE = "drawn from the fonts of matplotlib"


def make_glyphs(folder: Path | None = None, drawings: int = DRAWINGS) -> ImageStore:
    """Draw the data set and store it in `folder`, or in memory if that is None or not writable."""
    classes = [
        (name, split, draw_class(_character(name), drawings))
        for split, names in class_lists("glyphs").items()
        for name in names
    ]
    if folder is not None:
        # Neither a read-only folder nor another process that is drawing the same set is a reason to fail.
        with suppress(OSError, UsageError):
            return _stored(folder, classes)
    return in_memory("glyphs", classes, CHARACTER_28, _SOURCE)


def _stored(folder: Path, classes: list[tuple[str, Split, NDArray[np.uint8]]]) -> ImageStore:
    partial = PartialStore(folder, CHARACTER_28, fingerprint=f"glyphs {SEED} {len(classes[0][2])}")
    try:
        for name, split, images in classes[len(partial.done) :]:
            partial.add(name, split, images)
        partial.publish(_SOURCE)
    finally:
        partial.close()
    return ImageStore.open(folder)


def _character(class_name: str) -> str:
    return chr(int(class_name.rpartition("U+")[2], 16))


def draw_class(character: str, drawings: int) -> NDArray[np.uint8]:
    """Draw a class `[drawings, 1, 28, 28]`, bright on black; the result depends on the character alone."""
    random = np.random.default_rng([SEED, ord(character)])
    fonts = [font for font in FONTS if covers(font, ord(character))]
    styles = {(f, s): render(f, character, s) for f in fonts for s in (0, 1, 2)}
    chosen = [(fonts[random.integers(len(fonts))], int(random.integers(3))) for _ in range(drawings)]
    return np.stack([_distorted(styles[style], random) for style in chosen])[:, None]


def render(font: str, character: str, stroke: int) -> Image.Image:
    """Draw a character, cropped to its ink; `stroke` widens the outline."""
    from PIL import Image, ImageDraw

    face = _face(font)
    left, top, right, bottom = face.getbbox(character, stroke_width=stroke)
    ink = Image.new("L", (max(1, round(right - left)), max(1, round(bottom - top))))
    ImageDraw.Draw(ink).text((-left, -top), character, fill=255, font=face, stroke_width=stroke)
    return ink


def _distorted(ink: Image.Image, random: np.random.Generator) -> NDArray[np.uint8]:
    """Rotate, shear, scale, stretch and shift the ink, and displace the four corners a little."""
    from PIL import Image

    angle, shear = random.uniform(-0.3, 0.3), random.uniform(-0.3, 0.3)
    stretch = np.exp(random.uniform(-0.2, 0.2))
    size = random.uniform(0.5, 0.8) * _CANVAS / max(ink.size)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    forward = size * turn @ np.array([[1.0, shear], [0.0, 1.0]]) @ np.diag([stretch, 1 / stretch])
    shift = random.uniform(-0.08, 0.08, 2) * _CANVAS
    # Pillow expects the source point of each corner of the result.
    corners = (np.array([[0, 0], [0, 1], [1, 1], [1, 0]]) - 0.5) * _CANVAS
    corners = corners + random.uniform(-0.07, 0.07, corners.shape) * _CANVAS - shift
    quad = corners @ np.linalg.inv(forward).T + np.array(ink.size) / 2
    flat = tuple(quad.ravel().tolist())
    warped = ink.transform((_CANVAS, _CANVAS), Image.Transform.QUAD, flat, Image.Resampling.BILINEAR)
    return np.asarray(warped.reduce(2))


@cache
def _path(font: str) -> str:
    import matplotlib

    return str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font)


@cache
def _face(font: str) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    # The basic layout engine gives the same result everywhere; the other needs a system library.
    return ImageFont.truetype(_path(font), 48, layout_engine=ImageFont.Layout.BASIC)


@cache
def _codes(font: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(_path(font)).get_charmap())


def covers(font: str, code: int) -> bool:
    """Return True if the font has a glyph for this code point."""
    return code in _codes(font)
