"""From an uploaded file to the pixels a network reads; what is no harmless picture is refused."""

from __future__ import annotations

import warnings
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from pathaware.datasets.images import FORMATS, BadImage
from pathaware.datasets.pictures import PictureForm
from pathaware.serve.refusals import Refused

KINDS = ", ".join("PNM" if name == "PPM" else name for name in FORMATS)


def quiet() -> None:
    """Pillow warns of odd files on stderr; here each is answered to the one who sent it."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    warnings.filterwarnings("ignore", module=r"pathaware\.(serve|datasets)\.")


def read_picture(raw: bytes, form: PictureForm, most_pixels: int) -> NDArray[np.uint8]:
    """Pixels `[C, size, size]`, of an animation its first frame. The header is judged before decoding."""
    from PIL import Image, UnidentifiedImageError

    if not raw:
        raise Refused(400, "the body is empty; send an image file")
    try:
        Image.open(BytesIO(raw), formats=FORMATS).verify()  # checksums, where the format has any
        image = Image.open(BytesIO(raw), formats=FORMATS)
    except UnidentifiedImageError:
        raise Refused(415, f"not an image in a known format ({KINDS})") from None
    except Image.DecompressionBombError:
        raise Refused(413, f"more than the {most_pixels:,} pixels allowed") from None
    # Decoders meet hostile and broken bytes with many kinds of exception; every one means "not an image".
    except Exception:
        raise Refused(422, "the image is damaged") from None
    with image:
        if image.width * image.height > most_pixels:
            size = f"{image.width}×{image.height}"
            raise Refused(413, f"{size} pixels, more than the {most_pixels:,} allowed")
        if min(image.size) < 1:
            raise Refused(422, "the image has no pixels")
        try:
            return form.pixels(image).copy()  # a view would keep the whole image alive
        except (BadImage, MemoryError):
            raise Refused(422, "the image is damaged") from None
