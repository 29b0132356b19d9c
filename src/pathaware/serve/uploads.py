"""Receive uploaded files within memory limits, and decode them to the pixels a network reads."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from starlette.requests import ClientDisconnect, Request

from pathaware.data.pixels import FORMATS, BadImage, ImageInput, phone_format, unknown_range
from pathaware.serve.api_error import ApiError
from pathaware.serve.limits import Limits

FORMAT_NAMES = ", ".join("PNM" if name == "PPM" else name for name in FORMATS)


def quiet() -> None:
    """Silence Pillow's warnings about odd files on stderr; the client gets an error instead."""
    warnings.filterwarnings("ignore", module=r"PIL\.")
    warnings.filterwarnings("ignore", module=r"pathaware\.(serve|data)\.")


def read_image(raw: bytes, form: ImageInput, limits: Limits) -> NDArray[np.uint8]:
    """Check the size of an image file, then decode it (its first frame) to pixels `[C, size, size]`."""
    from PIL import Image, UnidentifiedImageError

    if not raw:
        raise ApiError(400, "the body is empty; send an image file")
    try:
        image = Image.open(BytesIO(raw), formats=FORMATS)
        _check_size(image.size, limits)
        image.verify()  # checksums, where the format has any
        image = Image.open(BytesIO(raw), formats=FORMATS)
    except ApiError:
        raise
    except UnidentifiedImageError:
        raise ApiError(415, phone_format(raw) or f"not an image in a known format ({FORMAT_NAMES})") from None
    except Image.DecompressionBombError:
        raise ApiError(413, f"more than the {limits.pixels:,} pixels allowed") from None
    # Decoders raise many kinds of exceptions for broken or hostile bytes; all mean "not an image".
    except Exception:
        raise ApiError(422, "the image is damaged") from None
    with image:
        if min(image.size) < 1:
            raise ApiError(422, "the image has no pixels")
        if reason := unknown_range(image):
            raise ApiError(415, reason)
        try:
            return form.pixels(image).copy()  # a view would keep the whole image in memory
        except (BadImage, MemoryError):
            raise ApiError(422, "the image is damaged") from None


def _check_size(size: tuple[int, int], limits: Limits) -> None:
    """Refuse an image before it is decoded; to scale a long and narrow one would take gigabytes."""
    width, height = size
    if width * height > limits.pixels:
        raise ApiError(413, f"{width}×{height} pixels, more than the {limits.pixels:,} allowed")
    if max(size) > limits.side:
        raise ApiError(413, f"{width}×{height} pixels, more than {limits.side:,} wide or high")


_DISCARD = 4
"""Multiple of the allowed size up to which a body that is too large is read and discarded: a client that is
cut off while sending would see a broken connection instead of the reason."""
_DISCARD_SECONDS = 3.0


class Uploads:
    """Reads request bodies, never more bytes in total than allowed, whatever clients declare or send."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._held = 0

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """Read the body of a request; it counts towards the limit until the block ends."""
        received = bytearray()
        try:
            await self._read(request, received)
            yield bytes(received)
        finally:
            self._held -= len(received)

    async def _read(self, request: Request, received: bytearray) -> None:
        if request.headers.get("content-type", "").startswith("multipart/"):
            raise ApiError(415, "send the file itself as the body, not a form (curl --data-binary @FILE)")
        if _declared(request) > self._limits.upload_bytes:
            await self._too_large(request)
        try:
            async with asyncio.timeout(self._limits.upload_seconds):
                async for part in request.stream():
                    if len(received) + len(part) > self._limits.upload_bytes:
                        await self._too_large(request)
                    if self._held + len(part) > self._limits.uploads_in_memory:
                        raise ApiError(503, "too many uploads at once; try again in a moment", retry=1)
                    received += part
                    self._held += len(part)
        except TimeoutError:
            seconds = self._limits.upload_seconds
            raise ApiError(408, f"the file did not arrive within {seconds:g} seconds") from None
        except ClientDisconnect:
            raise ApiError(400, "the upload broke off") from None

    async def _too_large(self, request: Request) -> None:
        allowed, seen = self._limits.upload_bytes, 0
        try:
            async with asyncio.timeout(_DISCARD_SECONDS):
                async for part in request.stream():
                    seen += len(part)
                    if seen > _DISCARD * allowed:
                        break
        except (TimeoutError, ClientDisconnect, RuntimeError):
            pass
        raise ApiError(413, f"the file has more than the {allowed:,} bytes allowed")


def _declared(request: Request) -> int:
    """Return the declared length; the actual one is checked while reading."""
    declared = request.headers.get("content-length", "")
    return int(declared[:40]) if declared.isascii() and declared.isdigit() else 0
