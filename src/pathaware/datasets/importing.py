"""Import a data set: read its layout, decode every image, pack them into a store."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pathaware.datasets.images import BadImage, ImageFormat, decode
from pathaware.datasets.location import store_folder
from pathaware.datasets.packing import PartialStore
from pathaware.datasets.sources import ImportRefused, Layout, Listing, Pixels, SourceClass, SourceImage
from pathaware.datasets.store import ImageStore
from pathaware.errors import UsageError

Progress: TypeAlias = Callable[[int, int, str], None]
"""Told after each class: images done, images in all, and the name of the class."""


def import_dataset(
    name: str,
    layout: Layout,
    source: Path,
    data_dir: Path | None = None,
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> ImageStore:
    """Read `source` in the given layout and store it as `name`.

    The store appears at the end, whole. An import cut off half-way goes on where it stopped when it is
    repeated; one refused for bad images (all of them named) leaves nothing behind.
    """
    folder = store_folder(name, data_dir)
    if folder.exists() and not replace:
        raise UsageError(f"{folder}: {name} is already imported; pass --replace to import it again")
    listing = layout.read(source)
    try:
        partial = PartialStore(folder, layout.format, _fingerprint(listing, layout.format))
        try:
            problems = _pack(listing, layout.format, partial, progress or (lambda done, total, name: None))
            if problems:
                partial.discard()
                raise ImportRefused(source, problems)
            partial.publish(listing.origin)
        finally:
            partial.close()
    except OSError as error:  # trouble with reading is among the problems; this is a full or read-only disk
        raise UsageError(f"{folder.parent}: cannot be written ({error.strerror})") from None
    return ImageStore.open(folder)


def _pack(listing: Listing, form: ImageFormat, partial: PartialStore, progress: Progress) -> list[str]:
    """Decode and write every class that is not there yet; the problems of all images, if any."""
    problems: list[str] = []
    total = sum(len(c.images) for c in listing.classes)
    done = sum(c.count for c in partial.done)
    # Two threads: decoding releases the interpreter, and more would only wait for the disk.
    with ThreadPoolExecutor(2) as pool, warnings.catch_warnings():
        from PIL import Image

        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for source in listing.classes[len(partial.done) :]:
            decoded = list(pool.map(lambda image: _load(image, form), source.images))
            problems += [d for d in decoded if isinstance(d, str)]
            # After the first bad image nothing more is written, but all are looked at, to name them all.
            if not problems:
                pixels = np.stack([d for d in decoded if not isinstance(d, str)])
                partial.add(source.name, source.split, np.rot90(pixels, source.quarter_turns, axes=(2, 3)))
            done += len(source.images)
            progress(done, total, source.name)
    return problems


def _load(image: SourceImage, form: ImageFormat) -> Pixels | str:
    try:
        return decode(image.read(), form)
    except (BadImage, UsageError) as error:
        return f"{image.label}: {error}"
    except OSError as error:
        return f"{image.label}: cannot be read ({error.strerror or error})"


def _fingerprint(listing: Listing, form: ImageFormat) -> str:
    """What has to be the same for packed classes to be kept: the form, and every image by name and order."""

    def described(source: SourceClass) -> object:
        return source.name, source.split, source.quarter_turns, [i.label for i in source.images]

    digest = hashlib.sha256(repr(form).encode())
    for source in listing.classes:
        digest.update(json.dumps(described(source)).encode())
    return digest.hexdigest()
