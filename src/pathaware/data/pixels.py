"""From the bytes of an image file to the pixels a store keeps."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING
import numpy as np
from numpy.typing import NDArray
from pathaware.core.errors import UsageError
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
import torch
from torch import Tensor
from pathaware.data.store import ImageStore
from pathaware.data.importers.trees import MAX_FILE

if TYPE_CHECKING:
    from PIL import Image
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


# From a picture in whatever form somebody has it to what a trained network expects.


Picture: TypeAlias = "str | PathLike[str] | bytes | Image.Image | NDArray[Any] | Tensor"
"""A path, the bytes of an image file, a PIL image, or numbers `[H, W]`, `[H, W, C]` or `[C, H, W]`."""

_BRIGHT = 127


@dataclass(frozen=True)
class PictureForm:
    """What a network saw in training: `channels` × `size` × `size`, normalised by `mean` and `std` of each
    channel, of pixels in 0…1. With `ink`, bright ink on black: a picture of dark ink on paper is inverted."""

    size: int
    channels: int
    ink: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, store: ImageStore) -> PictureForm:
        about = store.manifest
        return cls(about.shape[1], about.shape[0], about.ink, about.mean, about.std)

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> PictureForm:
        return cls(**{**kept, "mean": tuple(kept["mean"]), "std": tuple(kept["std"])})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.size, self.size)

    def pixels(self, picture: Picture) -> NDArray[np.uint8]:
        """Pixels `[C, size, size]`, scaled and recoloured as importing does it; `BadImage` if it is none."""
        form = ImageFormat(self.size, self.channels)
        found = decode(_raw(picture), form)
        return 255 - found if self.ink and _on_paper(found) else found

    def stack(self, pictures: Sequence[Picture] | NDArray[Any] | Tensor, what: str = "pictures") -> Tensor:
        """Pixels `[N, C, size, size]` of many pictures; what cannot be used is named by its place or path."""
        found = []
        for i, picture in enumerate(pictures):
            try:
                found.append(self.pixels(picture))
            except BadImage as error:
                name = picture if isinstance(picture, (str, PathLike)) else f"{what}[{i}]"
                raise UsageError(f"{name}: {error}") from None
        if not found:
            return torch.zeros(0, *self.shape, dtype=torch.uint8)
        return torch.from_numpy(np.stack(found))

    def normalised(self, pixels: Tensor) -> Tensor:
        """What the network reads, from pixels `[N, C, size, size]` in 0…255."""
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        mean, scale = mean * 255, 1 / (std * 255)
        return (pixels.float() - mean) * scale


def _raw(picture: Picture) -> bytes | NDArray[np.uint8] | Image.Image:
    from PIL import Image

    if isinstance(picture, (bytes, Image.Image)):
        return picture
    if isinstance(picture, (str, PathLike)):
        return _file(Path(picture))
    if isinstance(picture, Tensor):
        picture = picture.detach().cpu().numpy()
    return _numbers(np.asarray(picture))


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise BadImage(f"cannot be read ({error.strerror})") from None
    if len(content) > MAX_FILE:
        raise BadImage(f"more than the {MAX_FILE:,} bytes allowed for one file")
    return content


def _numbers(values: NDArray[Any]) -> NDArray[np.uint8]:
    """`[H, W]`, `[H, W, C]` or `[C, H, W]`, of 0…255 in integers or 0…1 in floats, as `[H, W, 3]`."""
    if values.ndim == 3 and values.shape[-1] not in (1, 3) and values.shape[0] in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.shape[-1] not in (1, 3) or 0 in values.shape:
        raise BadImage(f"numbers of shape {values.shape} are no picture; [H, W], [H, W, 3] or [3, H, W]")
    if values.dtype == bool:
        values = values.astype(np.uint8) * 255
    elif np.issubdtype(values.dtype, np.floating):
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise BadImage("numbers with a point must lie between 0 and 1 (whole ones between 0 and 255)")
        values = np.rint(values * 255).astype(np.uint8)
    elif np.issubdtype(values.dtype, np.integer):
        if values.min() < 0 or values.max() > 255:
            raise BadImage("whole numbers must lie between 0 and 255")
        values = values.astype(np.uint8)
    else:
        raise BadImage(f"{values.dtype} is no type of numbers")
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def _on_paper(pixels: NDArray[np.uint8]) -> bool:
    """Whether ink was drawn on something bright: what lies along the edge is paper, not ink."""
    edge = np.concatenate([pixels[..., 0, :], pixels[..., -1, :], pixels[..., 0], pixels[..., -1]], axis=-1)
    return bool(np.median(edge) > _BRIGHT)
