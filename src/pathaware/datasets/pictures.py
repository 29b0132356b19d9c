"""From a picture in whatever form somebody has it to what a trained network expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathaware.datasets.images import BadImage, ImageFormat, decode
from pathaware.datasets.store import ImageStore
from pathaware.datasets.trees import MAX_FILE
from pathaware.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

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
