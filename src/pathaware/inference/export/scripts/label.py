"""Labels pictures: `python label.py picture.png …` prints each with its label and how probable that is.

Needs numpy, pillow and onnxruntime; the model lies beside this file.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from pathaware.inference.export.scripts.with_onnx import opened

MODEL = "model.onnx"
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def pixels(path: str, size: int, channels: int, ink: bool) -> NDArray[np.uint8]:
    """The picture as the model reads it, `[channels, size, size]`."""
    with Image.open(path, formats=FORMATS) as file:
        file.load()
        image: Image.Image = ImageOps.exif_transpose(file)
    if image.mode.startswith("I"):  # grey of 16 bits
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        layers = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.LANCZOS)
    found = np.asarray(image).reshape(size, size, channels).transpose(2, 0, 1)
    edge = np.concatenate([found[:, 0], found[:, -1], found[:, :, 0], found[:, :, -1]], axis=-1)
    # The model knows bright ink on black; what lies along the edges is paper, not ink.
    return 255 - found if ink and np.median(edge) > 127 else found


def label(path: str, about: dict[str, Any], answer: Callable[..., Any]) -> tuple[str, float]:
    """The most probable class and its probability."""
    image = pixels(path, about["size"], about["channels"], about["ink"])
    probabilities = answer(np.ascontiguousarray(image[None]))[0]
    best = int(probabilities.argmax())
    return about["classes"][best], float(probabilities[best])


def main(paths: list[str]) -> int:
    about, answer = opened(str(Path(__file__).with_name(MODEL)))
    failed = 0
    for path in paths:
        try:
            found, probability = label(path, about, answer)
        except Exception as error:  # a decoder has many ways to say that something is no picture
            print(f"{path}: {error}", file=sys.stderr)
            failed = 1
        else:
            print(path, found, f"{probability:.6f}", sep="\t")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) if sys.argv[1:] else __doc__)
