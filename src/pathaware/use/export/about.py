"""What an exported file says of itself: all that a stranger needs to use it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pathaware
from pathaware.datasets.pictures import PictureForm

About = dict[str, Any]

_PREPARATION = (
    "turn the picture as its EXIF orientation says",
    "of grey with 16 bits, take the upper 8",
    "put what is transparent on white",
    "convert to {mode}",
    "scale both sides to {size} pixels by Lanczos, whatever the proportions",
)
_INK = "if the median pixel along the four edges is above 127, invert: 255 - pixels"


def about(form: PictureForm, classes: Sequence[str]) -> About:
    steps = [*_PREPARATION, _INK] if form.ink else _PREPARATION
    mode = "grey (ITU-R 601-2 luma)" if form.channels == 1 else "RGB"
    return {
        "classes": list(classes),
        "size": form.size,
        "channels": form.channels,
        "ink": form.ink,
        "preparation": [step.format(mode=mode, size=form.size) for step in steps],
        "input": f"images: uint8 [N, {form.channels}, {form.size}, {form.size}], 0 to 255",
        "output": f"probabilities: float32 [N, {len(classes)}], in the order of classes",
        "made_by": f"pathaware {pathaware.__version__}",
    }


def as_texts(about: About) -> dict[str, str]:
    """For files that keep text only: every value as JSON."""
    return {key: json.dumps(value) for key, value in about.items()}
