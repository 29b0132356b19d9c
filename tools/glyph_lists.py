"""Choose the characters of the glyphs data set, as listed in `src/pathaware/data/splits/glyphs`.

    python -m tools.glyph_lists FOLDER

The lists are kept as files, so that the classes do not depend on the version of a font renderer.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pathaware.data.glyphs import REQUIRED, covers, render
from pathaware.data.store import Split

# Whole scripts are held out, so that test characters are unlike any in training.
SCRIPTS: dict[Split, dict[str, list[tuple[int, int]]]] = {
    "train": {
        "Latin": [(0x41, 0x5A), (0x61, 0x7A), (0xC6, 0xFE), (0x180, 0x2AF)],
        "Cyrillic": [(0x400, 0x52F)],
        "Georgian": [(0x10A0, 0x10FF), (0x2D00, 0x2D2F)],
        "Syllabics": [(0x1401, 0x167F)],
        "Mathematics": [(0x2200, 0x22FF)],
    },
    "val": {
        "Greek": [(0x391, 0x3FF)],
        "Armenian": [(0x531, 0x556), (0x561, 0x587)],
        "Hebrew": [(0x5D0, 0x5EA)],
    },
    "test": {
        "Arabic": [(0x620, 0x64A), (0x671, 0x6D3)],
        "NKo": [(0x7C0, 0x7EA)],
        "Lao": [(0xE81, 0xEB0), (0xEC0, 0xEDD)],
        "Tifinagh": [(0x2D30, 0x2D6F)],
        "OldItalic": [(0x10300, 0x1032F)],
    },
}
MAX_SIMILARITY = 0.9
"""Above this cosine between two size-normalised images, random distortion hides the difference."""


def choose() -> dict[Split, list[str]]:
    """Every character that the fonts contain and that is unlike all characters chosen before it."""
    chosen: list[NDArray[np.float64]] = []
    lists: dict[Split, list[str]] = {}
    for split, scripts in SCRIPTS.items():
        lists[split] = []
        for script, ranges in scripts.items():
            for code in (c for first, last in ranges for c in range(first, last + 1)):
                if not _suitable(code):
                    continue
                image = unit_image(chr(code))
                if not chosen or (np.stack(chosen) @ image).max() < MAX_SIMILARITY:
                    chosen.append(image)
                    lists[split].append(f"{script}/U+{code:04X}")
    return lists


def _suitable(code: int) -> bool:
    # Accents are lost under distortion, and modifier letters (category Lm) are often mere dashes.
    undecorated = not unicodedata.decomposition(chr(code))
    kind = unicodedata.category(chr(code))
    return undecorated and kind[0] in "LNS" and kind != "Lm" and all(covers(font, code) for font in REQUIRED)


def unit_image(character: str, size: int = 24) -> NDArray[np.float64]:
    """The character scaled to fill a square, as a vector of norm 1."""
    from PIL import Image

    ink = render(REQUIRED[0], character, stroke=0)
    scale = (size - 4) / max(ink.size)
    ink = ink.resize(
        (max(1, round(ink.width * scale)), max(1, round(ink.height * scale))), Image.Resampling.BOX
    )
    image = Image.new("L", (size, size))
    image.paste(ink, ((size - ink.width) // 2, (size - ink.height) // 2))
    vector = np.asarray(image, dtype=np.float64).ravel()
    return vector / max(float(np.linalg.norm(vector)), 1.0)


if __name__ == "__main__":
    for split, names in choose().items():
        (Path(sys.argv[1]) / f"{split}.txt").write_text("".join(f"{n}\n" for n in names), encoding="utf-8")
