"""Image files, damaged in ways that disks, networks and strangers damage them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from tests.data.image_trees import pixels
from tests.fuzz.archives import change
from tests.serve.serving import encoded

SIZE = 24
NUMBERS = (0, 1, 255, 2**15, 2**16 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
"""Sides and lengths in headers at which readers have overflowed."""


def _saved(kind: str, mode: str = "RGB", **options: Any) -> Callable[[], bytes]:
    return lambda: encoded(Image.fromarray(pixels(3, SIZE)).convert(mode), kind, **options)


def _sixteen_bits() -> bytes:
    return encoded(Image.fromarray(np.arange(SIZE * SIZE, dtype=np.uint16).reshape(SIZE, SIZE) * 100))


def _animated(kind: str) -> Callable[[], bytes]:
    frames = [Image.fromarray(pixels(seed, SIZE)) for seed in range(3)]
    return _saved(kind, save_all=True, append_images=frames)


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: a quarter turn
    return _saved("JPEG", exif=exif)()


KINDS: dict[str, Callable[[], bytes]] = {
    "colour.png": _saved("PNG"),
    "palette.png": _saved("PNG", "P"),
    "transparent.png": _saved("PNG", "RGBA"),
    "sixteen.png": _sixteen_bits,
    "photo.jpg": _saved("JPEG"),
    "progressive.jpg": _saved("JPEG", progressive=True),
    "cmyk.jpg": _saved("JPEG", "CMYK"),
    "turned.jpg": _turned,
    "animated.gif": _animated("GIF"),
    "plain.bmp": _saved("BMP"),
    "palette.bmp": _saved("BMP", "P"),
    "plain.tiff": _saved("TIFF"),
    "deflated.tiff": _saved("TIFF", compression="tiff_adobe_deflate"),
    "packed.tiff": _saved("TIFF", compression="tiff_lzw"),
    "lossy.webp": _saved("WEBP"),
    "lossless.webp": _saved("WEBP", lossless=True),
    "plain.ppm": _saved("PPM"),
    "grey.pgm": _saved("PPM", "L"),
}


def mutated(kind: str, seed: int) -> bytes:
    """An image of this kind with one to three random changes, the same ones for the same seed."""
    chance = random.Random(f"{kind} {seed}")
    content = bytearray(KINDS[kind]())
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.4 and len(content) > 80:  # a number in the header
            at, width = chance.randrange(2, 70), chance.choice((2, 4))
            number = chance.choice(NUMBERS) % 2 ** (8 * width)
            content[at : at + width] = number.to_bytes(width, chance.choice(("big", "little")))
        else:
            change(content, chance)
    return bytes(content)
