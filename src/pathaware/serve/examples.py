"""Glyphs to try a model with, for somebody who has no pictures at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from io import BytesIO

from pathaware.datasets.glyphs import draw_class

# Of scripts that no glyph model has seen in training; they look like what they are called here.
CHARACTERS = {"hourglass": "\u2d35", "fork": "\U00010319", "lattice": "\u2d4c"}
TAUGHT, ASKED = 2, 2


@dataclass(frozen=True)
class Example:
    label: str
    asked: bool
    """For the question, not for the lesson."""
    png: bytes


@cache
def examples() -> tuple[Example, ...]:
    """Of each class some drawings to teach and some to ask about, dark on paper as a person would draw."""
    from PIL import Image

    found = []
    for name, character in CHARACTERS.items():
        for place, pixels in enumerate(draw_class(character, TAUGHT + ASKED)[:, 0]):
            file = BytesIO()
            Image.fromarray(255 - pixels).save(file, "PNG")
            found.append(Example(name, place >= TAUGHT, file.getvalue()))
    return tuple(found)
