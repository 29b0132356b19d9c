"""Image files decoded to pixels: `ImageFormat` for stores, `ImageInput` for trained networks.

`TypicalImages` keeps what the training images of a model look like, to notice images of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from os import PathLike
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.schema import read_table
from pathaware.data.importers.trees import MAX_FILE
from pathaware.data.store import ClassSpan, ImageStore, checksum, counted

if TYPE_CHECKING:
    from PIL import Image

# Raster formats only: Pillow also opens some formats that run external programs.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
# A photograph has about ten million pixels; a small file with far more is an attack or an accident.
MAX_PIXELS = 64_000_000
UNKNOWN = "not an image in a known format"


UNREADABLE_SUFFIXES = {
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".dng",
    ".cr2",
    ".cr3",
    ".nef",
    ".arw",
    ".raf",
    ".orf",
}
"""Photographs in formats that Pillow does not read. They are named in errors, never left out in silence."""


class BadImage(Exception):
    """Raised for an image that cannot be used; `named` adds its name to the reason."""

    def named(self, name: str) -> str:
        """A line with the name of the image and the reason; an unknown format is known by such a name."""
        suffix = PurePath(name).suffix.lower()
        if str(self) == UNKNOWN and suffix in UNREADABLE_SUFFIXES:
            return f"{name}: {_save_as_jpeg(suffix[1:].upper())}"
        return f"{name}: {self}"


@dataclass(frozen=True)
class ImageFormat:
    """Size and colour of the images in a store."""

    size: int
    channels: int
    invert: bool = False
    """Turn dark ink on white paper into bright ink on black, so that zero padding is background."""
    mirror: bool = True
    ink: bool = False
    """The stored images are bright ink on black."""
    crop: float = 0.0
    """The side of the square in the middle that is kept, in units of the shorter side. With 0 the whole image
    is scaled, whatever its proportions."""

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
    """Decode a file's bytes, pixels `[H, W, 3]` or an open image to `[C, size, size]`.

    Without a crop both sides are scaled to `size`, as was done for the published data sets.
    """
    from PIL import Image

    if isinstance(raw, np.ndarray):
        return _stored(Image.fromarray(raw), form)
    try:
        with nullcontext(raw) if isinstance(raw, Image.Image) else _opened(raw) as image:
            if image.width * image.height > MAX_PIXELS:
                size = f"{image.width}×{image.height}"
                raise BadImage(f"{size} pixels, more than the {MAX_PIXELS:,} allowed; scale it down")
            image.load()
            if reason := unknown_range(image):
                raise BadImage(reason)
            return _stored(image, form)
    except BadImage:
        raise
    # Decoders raise many kinds of exceptions for broken or hostile bytes; all mean "not an image".
    except Exception as error:
        raise BadImage(_reason(error, raw)) from None


def _opened(raw: bytes) -> Image.Image:
    from PIL import Image

    return Image.open(BytesIO(raw), formats=FORMATS)


def _stored(image: Image.Image, form: ImageFormat) -> NDArray[np.uint8]:
    from PIL import Image, ImageOps

    image = _opaque(_eight_bit(ImageOps.exif_transpose(image)))
    image = image.convert("L" if form.channels == 1 else "RGB")
    if form.crop:
        side = max(1, round(form.crop * min(image.size)))
        left, top = ((length - side) / 2 for length in image.size)
        box = (left, top, left + side, top + side)
        image = image.resize((form.size, form.size), Image.Resampling.BICUBIC, box)
    elif image.size != (form.size, form.size):
        image = image.resize((form.size, form.size), Image.Resampling.LANCZOS)
    pixels = np.asarray(image)
    pixels = pixels[None] if form.channels == 1 else pixels.transpose(2, 0, 1)
    return 255 - pixels if form.invert else pixels


def _eight_bit(image: Image.Image) -> Image.Image:
    """Keep the upper 8 of 16 bits; a plain conversion would clip nearly everything to white."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))


def _opaque(image: Image.Image) -> Image.Image:
    """Put transparent images on white, as viewers do; transparent pixels have arbitrary colours."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    layers = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)


def _reason(error: Exception, raw: object) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, (Image.DecompressionBombError, Image.DecompressionBombWarning)):
        return f"more than {MAX_PIXELS:,} pixels; scale it down"
    if isinstance(error, UnidentifiedImageError):
        if raw == b"":
            return "the file is empty"
        return (phone_format(raw) if isinstance(raw, bytes) else "") or UNKNOWN
    return str(error) or type(error).__name__


_BITS_PER_SAMPLE = 258
_BRANDS = {
    b"heic": "HEIC",
    b"heix": "HEIC",
    b"hevc": "HEIC",
    b"mif1": "HEIF",
    b"msf1": "HEIF",
    b"avif": "AVIF",
}


def phone_format(content: bytes) -> str:
    """A reason for photographs as phones store them, which Pillow does not read; else an empty text."""
    found = _BRANDS.get(content[8:12]) if content[4:8] == b"ftyp" else None
    return _save_as_jpeg(found) if found else ""


def _save_as_jpeg(kind: str) -> str:
    article = "an" if kind[0] in "ANO" else "a"
    return f"{article} {kind} image, which cannot be read; save it as JPEG or PNG"


def unknown_range(image: Image.Image) -> str:
    """A reason for 32-bit images, whose values could have any range; else an empty text.

    16-bit images can have the same mode: those in PNG and PPM files, depending on the version of Pillow, and
    signed ones in TIFF files. An image in memory counts as 16-bit if its values have that range.
    """
    if image.mode not in ("I", "F"):
        return ""
    if image.mode == "I":
        tags = getattr(image, "tag_v2", None)
        if image.format in ("PNG", "PPM") or (tags is not None and tags.get(_BITS_PER_SAMPLE) == (16,)):
            return ""
        values = np.asarray(image) if image.format is None else np.zeros(1, int)
        if values.min() >= 0 and 255 < values.max() < 2**16:
            return ""
    kind = "float" if image.mode == "F" else "integer"
    return f"a 32-bit {kind} image, whose range is unknown; save it as 8-bit"


ImageLike: TypeAlias = "str | PathLike[str] | bytes | Image.Image | NDArray[Any] | Tensor"
"""A path, the bytes of an image file, a PIL image, or numbers `[H, W]`, `[H, W, C]` or `[C, H, W]`."""

_BRIGHT = 127
LEAST_STD = 1e-6
"""Smallest deviation of pixels by which images are divided."""


@dataclass(frozen=True)
class ImageInput:
    """The images a trained network expects: `channels` × `size` × `size`, normalised with `mean` and `std`
    per channel (of pixels in 0…1). With `ink`, bright ink on black: dark ink on paper is inverted. `mirror`
    is True if a mirrored image is known to show its class as well; models of earlier versions do not say.
    `crop` is that of `ImageFormat`."""

    size: int
    channels: int
    ink: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror: bool = False
    crop: float = 0.0

    def __post_init__(self) -> None:
        ImageFormat(self.size, self.channels)
        if not len(self.mean) == len(self.std) == self.channels or min(self.std) < LEAST_STD:
            raise UsageError(
                f"image inputs: mean and std must be {self.channels} numbers each, std at least {LEAST_STD:g}"
            )

    @classmethod
    def of(cls, store: ImageStore) -> ImageInput:
        """The input of a network trained on the images of a store."""
        m = store.manifest
        return cls(m.shape[1], m.shape[0], m.ink, m.mean, m.std, m.mirror)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> ImageInput:
        """The inverse of `to_dict`."""
        return read_table("inputs", saved, cls, known_only=False)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, as checkpoints store them."""
        return asdict(self)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (self.channels, self.size, self.size)

    def pixels(self, image: ImageLike) -> NDArray[np.uint8]:
        """Decode, crop and scale an image to `[C, size, size]`, or raise `BadImage`."""
        decoded = decode(_raw(image), ImageFormat(self.size, self.channels, crop=self.crop))
        return 255 - decoded if self.ink and _on_paper(decoded) else decoded

    def stack(self, images: Sequence[ImageLike] | NDArray[Any] | Tensor, what: str = "images") -> Tensor:
        """Decode images to `[N, C, size, size]`; an error names the image by its path or its index."""
        decoded = []
        for i, image in enumerate(images):
            try:
                decoded.append(self.pixels(image))
            except BadImage as error:
                name = image if isinstance(image, (str, PathLike)) else f"{what}[{i}]"
                raise UsageError(error.named(str(name))) from None
        if not decoded:
            return torch.zeros(0, *self.shape, dtype=torch.uint8)
        return torch.from_numpy(np.stack(decoded))

    def converted(self, store: ImageStore, split: str) -> ImageStore:
        """The classes of a split of another store, with images as the network expects them.

        Images are scaled and their colours changed as in `pixels`; those of a store of `ink` are not inverted
        again. Classes and images keep their order, so a seed draws the same tasks from both stores.
        """
        mirror = self.mirror and store.manifest.mirror
        expected = replace(store.manifest, mean=self.mean, std=self.std, mirror=mirror, ink=self.ink)
        form = replace(self, ink=self.ink and not store.manifest.ink)
        if store.shape == self.shape and not form.ink:
            return ImageStore(expected, store.images, store.folder)
        spans: list[ClassSpan] = []
        chosen: list[NDArray[np.uint8]] = []
        for span in (each for each in store.manifest.classes if each.split == split):
            spans.append(ClassSpan(span.name, span.split, len(chosen), span.count))
            chosen += [form.pixels(store.images[span.start + i]) for i in range(span.count)]
        images = torch.from_numpy(np.stack(chosen)) if chosen else torch.zeros(0, *self.shape).byte()
        kept = replace(expected, shape=self.shape, classes=tuple(spans), sha256=checksum(images))
        return ImageStore(kept, images)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Normalise pixels `[N, C, size, size]` in 0…255 for the network."""
        mean, std = (
            torch.tensor(values, dtype=torch.float32, device=pixels.device).view(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        mean, scale = mean * 255, 1 / (std * 255)
        return (pixels.float() - mean) * scale


def _raw(image: ImageLike) -> bytes | NDArray[np.uint8] | Image.Image:
    from PIL import Image

    if isinstance(image, (bytes, Image.Image)):
        return image
    if isinstance(image, (str, PathLike)):
        return _file(Path(image))
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = (image.float() if image.dtype == torch.bfloat16 else image).numpy()
    return _array(np.asarray(image))


def _file(path: Path) -> bytes:
    try:
        return read_file(path, MAX_FILE)
    except OSError as error:
        raise BadImage(f"cannot be read ({error.strerror})") from None


def _array(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Convert `[H, W]`, `[H, W, C]` or `[C, H, W]`, integers in 0…255 or floats in 0…1, to `[H, W, 3]`."""
    if values.ndim == 3 and values.shape[-1] not in (1, 3) and values.shape[0] in (1, 3):
        values = values.transpose(1, 2, 0)
    if values.ndim == 2:
        values = values[:, :, None]
    if values.ndim != 3 or values.shape[-1] not in (1, 3) or 0 in values.shape:
        raise BadImage(
            f"an array of shape {values.shape} is not an image; must be [H, W], [H, W, 3] or [3, H, W]"
        )
    if values.dtype == bool:
        values = values.astype(np.uint8) * 255
    elif np.issubdtype(values.dtype, np.floating):
        if not (np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1):
            raise BadImage("floats must lie between 0 and 1 (integers between 0 and 255)")
        values = np.rint(values * 255).astype(np.uint8)
    elif np.issubdtype(values.dtype, np.integer):
        if values.min() < 0 or values.max() > 255:
            raise BadImage("integers must lie between 0 and 255")
        values = values.astype(np.uint8)
    else:
        raise BadImage(f"data type {values.dtype} is not numeric")
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def _on_paper(pixels: NDArray[np.uint8]) -> bool:
    """Return True if the border, which shows paper rather than ink, is bright."""
    edge = np.concatenate([pixels[..., 0, :], pixels[..., -1, :], pixels[..., 0], pixels[..., -1]], axis=-1)
    return bool(np.median(edge) > _BRIGHT)


QUANTILE = 0.999
"""Quantile of the distances of training images above which an image counts as unlike them."""

SHARE = 0.2
"""Share of unlike images in a set above which a warning is worth it."""


def image_statistics(pixels: Tensor) -> Tensor:
    """Six numbers `[N, 6]` for each of the images `[N, C, H, W]` in 0…255.

    Mean, deviation, share of nearly black or white pixels, entropy of the histogram, mean difference of
    neighbouring pixels, mean saturation.
    """
    x = pixels.float() / 255
    grey = x.mean(1)
    flat = grey.flatten(1)
    bins = torch.stack([each.histc(16, 0, 1) for each in flat]) / flat.shape[1]
    extreme = bins[:, 0] + bins[:, 15]
    entropy = -(bins * bins.clamp(min=1e-12).log()).sum(1)
    across, down = grey.diff(dim=2).abs().flatten(1).mean(1), grey.diff(dim=1).abs().flatten(1).mean(1)
    saturation = (x.amax(1) - x.amin(1)).flatten(1).mean(1)
    found = torch.stack([flat.mean(1), flat.std(1), extreme, entropy, across + down, saturation], 1)
    return found.double()


@dataclass(frozen=True)
class TypicalImages:
    """Statistics of training images: `mean [6]` and inverse covariance `[6, 6]` of `image_statistics`.

    `limit` is the 99.9 % quantile of their Mahalanobis distances. This tells drawings from photographs, not
    one kind of photograph from another.
    """

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    limit: float
    images: int

    def __post_init__(self) -> None:
        if {len(self.precision), *map(len, self.precision)} != {len(self.mean)} or len(self.mean) != 6:
            raise UsageError("typical: mean and precision must have 6 and 6 × 6 numbers")

    @classmethod
    def of(cls, pixels: Tensor) -> TypicalImages:
        """Measure training images `[N, C, H, W]`; a thousand of them are enough."""
        found = image_statistics(pixels)
        mean, covariance = found.mean(0), torch.cov(found.T)
        # Grey images have no saturation at all; a little variance keeps the matrix invertible.
        precision = torch.linalg.inv(covariance + 1e-4 * torch.eye(len(covariance), dtype=found.dtype))
        away = _distances(found, mean, precision)
        limit = away.quantile(QUANTILE).item()
        return cls(tuple(mean.tolist()), tuple(map(tuple, precision.tolist())), limit, len(pixels))

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TypicalImages:
        """The inverse of `to_dict`."""
        return read_table("typical", saved, cls, known_only=False)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def distances(self, pixels: Tensor) -> Tensor:
        """Distances of images `[N, C, H, W]` from training images, in units of the limit."""
        mean, precision = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.precision))
        return _distances(image_statistics(pixels.cpu()), mean, precision) / self.limit

    def warning(self, pixels: Tensor, labelled: Tensor | None = None) -> str | None:
        """One sentence if many of these images look unlike the training images, else None.

        The `labelled` images of a task are counted apart from the others. The median distance is that of the
        unlike images.
        """
        kinds = {"": pixels} if labelled is None else {"labelled ": labelled, "other ": pixels}
        parts, found = [], []
        for kind, images in kinds.items():
            away = self.distances(images) if len(images) else torch.zeros(0)
            unlike = away[away > 1]
            if len(unlike) > SHARE * len(images):
                found.append(unlike)
                parts.append(f"{len(unlike)} of {counted(len(images), f'{kind}picture')}")
        if not found:
            return None
        distance = torch.cat(found)
        median = f"{distance.median():.1f} times as far away{' (median)' if len(distance) > 1 else ''}"
        return (
            f"{' and '.join(parts)} look{'s' if len(distance) == 1 else ''} unlike the images that the model "
            f"was trained on: {median} as 99.9 % of those, by brightness, contrast and colour; predictions "
            "may mean nothing"
        )


def _distances(found: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    centred = found - mean
    return ((centred @ precision) * centred).sum(1).clamp(min=0).sqrt()
