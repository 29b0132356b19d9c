"""From the bytes of an image file to the pixels a store keeps."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pathaware.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

# Only formats that are pixels through and through; Pillow can also open some that run other programs.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# A photograph has some ten million pixels. Far beyond that, a small file is an attack or an accident.
MAX_PIXELS = 64_000_000


class BadImage(Exception):
    """An image that cannot be used; the message says why, the importer adds which."""


@dataclass(frozen=True)
class ImageFormat:
    """The form all images of a store share."""

    size: int
    channels: int
    invert: bool = False
    """Dark ink on white paper becomes bright ink on black, so that padding is background."""
    mirror: bool = True
    ink: bool = False
    """What is stored is bright ink on black, however a picture was drawn."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 1024:
            raise UsageError(f"image size {self.size}: must be between 1 and 1024 pixels")
        if self.channels not in (1, 3):
            raise UsageError(f"image channels {self.channels}: must be 1 (grey) or 3 (colour)")


PHOTO_84 = ImageFormat(84, 3)
PHOTO_32 = ImageFormat(32, 3)
CHARACTER_28 = ImageFormat(28, 1, mirror=False, ink=True)
INK_28 = ImageFormat(28, 1, invert=True, mirror=False, ink=True)


def decode(raw: bytes | NDArray[np.uint8] | Image.Image, form: ImageFormat) -> NDArray[np.uint8]:
    """Pixels `[C, size, size]` from an encoded file, from pixels `[H, W, 3]`, or from an open image.

    Both sides are scaled to `size`, whatever the proportions: the published sets were made that way.
    """
    from PIL import Image

    if isinstance(raw, np.ndarray):
        return _stored(Image.fromarray(raw), form)
    try:
        with nullcontext(raw) if isinstance(raw, Image.Image) else _opened(raw) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BadImage(f"{image.width}×{image.height} pixels, more than the {MAX_PIXELS:,} allowed")
            image.load()
            return _stored(image, form)
    except BadImage:
        raise
    # Decoders meet hostile and broken bytes with many kinds of exception; every one means "not an image".
    except Exception as error:
        raise BadImage(_reason(error)) from None


def _opened(raw: bytes) -> Image.Image:
    from PIL import Image

    return Image.open(BytesIO(raw), formats=FORMATS)


def _stored(image: Image.Image, form: ImageFormat) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    image = _opaque(_of_eight_bits(ImageOps.exif_transpose(image)))
    image = image.convert("L" if form.channels == 1 else "RGB")
    if image.size != (form.size, form.size):
        image = image.resize((form.size, form.size), Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    pixels = pixels[None] if form.channels == 1 else pixels.transpose(2, 0, 1)
    return 255 - pixels if form.invert else pixels


def _of_eight_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits would be cut off at 255, and so be white nearly everywhere."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    """What is transparent is shown on white, as viewers do; its colour is anything, mostly black."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    layers = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image in a known format"
    return str(error) or type(error).__name__
