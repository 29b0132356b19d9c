"""From an uploaded file to the pixels a network reads; what is no harmless picture is refused."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

from pathaware.data.pixels import FORMATS, BadImage, ImageInput
from pathaware.serve.limits import Limits, Refused

KINDS = ", ".join("PNM" if name == "PPM" else name for name in FORMATS)


def quiet() -> None:
    """Pillow warns of odd files on stderr; here each is answered to the one who sent it."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    warnings.filterwarnings("ignore", module=r"pathaware\.(serve|datasets)\.")


def read_picture(raw: bytes, form: ImageInput, most_pixels: int) -> NDArray[np.uint8]:
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


# Image files as they arrive: never more in memory than allowed, whatever the client says or does.


_READ_ON = 4
"""How many files' worth of a body that is too large is read and thrown away: a client that is cut off while
it sends would see a broken connection instead of the reason."""
_READ_ON_SECONDS = 3.0


class Uploads:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The body of a request; it counts as held until the block ends."""
        kept = bytearray()
        try:
            await self._read(request, kept)
            yield bytes(kept)
        finally:
            self._held -= len(kept)

    async def _read(self, request: Request, kept: bytearray) -> None:
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise Refused(415, "send the file itself as the body, not a form (curl --data-binary @FILE)")
        if _declared(request) > self._limits.upload_bytes:
            await self._too_large(request)
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                async for part in request.stream():
                    if len(kept) + len(part) > self._limits.upload_bytes:
                        await self._too_large(request)
                    if self._held + len(part) > self._limits.uploads_in_memory:
                        raise Refused(503, "too many uploads at once; try again in a moment", retry=1)
                    kept += part
                    self._held += len(part)
        except TimeoutError:
            seconds = self._limits.upload_seconds
            raise Refused(408, f"the file did not arrive within {seconds:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "the upload broke off") from None

    async def _too_large(self, request: Request) -> None:
        most, seen = self._limits.upload_bytes, 0
        try:
            async with asyncio.timeout(_READ_ON_SECONDS):
                async for part in request.stream():
                    seen += len(part)
                    if seen > _READ_ON * most:
                        break
        except (TimeoutError, ClientDisconnect, RuntimeError):
            pass
        raise Refused(413, f"the file has more than the {most:,} bytes allowed")


def _declared(request: Request) -> int:
    """What the client says; a lie is found out while reading."""
    said = request.headers.get("content-length", "")
    return int(said[:40]) if said.isascii() and said.isdigit() else 0
