"""Write a store so that it is either whole or not there, and an interrupted import can go on."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
import numpy as np
import torch
from numpy.typing import NDArray
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import ClassSpan, Manifest, Split
from pathaware.data.store import MANIFEST, PIXELS, ImageStore, checksum
from pathaware.core.errors import UsageError
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias
from pathaware.data.pixels import BadImage, ImageFormat, decode
from pathaware.data.catalogue import store_folder
from pathaware.data.importers.source import ImportRefused, Importer, Listing, Pixels, SourceClass, SourceImage
from pathaware.data.store import ImageStore


JOURNAL = "journal.jsonl"
LOCK = "lock"


@dataclass(frozen=True)
class PackedClass:
    """A class that has been written. The sums are exact, so a resumed import ends with the same mean."""

    name: str
    split: Split
    count: int
    sums: list[int]
    squares: list[int]
    crc32: int

    @staticmethod
    def of(name: str, split: Split, images: NDArray[np.uint8]) -> PackedClass:
        return PackedClass(
            name=name,
            split=split,
            count=len(images),
            sums=images.sum(axis=(0, 2, 3), dtype=np.uint64).tolist(),
            squares=np.square(images, dtype=np.uint16).sum(axis=(0, 2, 3), dtype=np.uint64).tolist(),
            crc32=zlib.crc32(np.ascontiguousarray(images).data),
        )


def manifest_of(
    name: str, classes: Sequence[PackedClass], form: ImageFormat, sha256: str, source: str
) -> Manifest:
    training = [c for c in classes if c.split == "train"]
    pixels = sum(c.count for c in training) * form.size**2
    mean, std = [], []
    for channel in range(form.channels):
        first = sum(c.sums[channel] for c in training) / pixels
        second = sum(c.squares[channel] for c in training) / pixels
        mean.append(first / 255)
        # One grey level at least: a set of blank images must not divide by zero.
        std.append(max(math.sqrt(max(second - first**2, 0.0)), 1.0) / 255)
    spans, start = [], 0
    for c in classes:
        spans.append(ClassSpan(c.name, c.split, start, c.count))
        start += c.count
    return Manifest(
        name=name,
        shape=(form.channels, form.size, form.size),
        classes=tuple(spans),
        mean=tuple(mean),
        std=tuple(std),
        mirror=form.mirror,
        sha256=sha256,
        source=source,
        ink=form.ink,
    )


def in_memory(
    name: str, classes: Sequence[tuple[str, Split, NDArray[np.uint8]]], form: ImageFormat, source: str
) -> ImageStore:
    """A store without a folder, from images `[n, C, H, W]` by class."""
    pixels = torch.from_numpy(np.concatenate([images for _, _, images in classes]))
    packed = [PackedClass.of(*c) for c in classes]
    return ImageStore(manifest_of(name, packed, form, checksum(pixels), source), pixels)


class PartialStore:
    """A store being written, in a hidden folder beside its final place.

    The journal holds one line per finished class. A second import with the same `fingerprint` keeps those
    classes whose pixels still match their line; any other starts again from nothing.
    """

    def __init__(self, final: Path, form: ImageFormat, fingerprint: str) -> None:
        self.final, self.form = final, form
        self.folder = final.parent / f".{final.name}.partial"
        self.done: list[PackedClass] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UsageError(f"{final}: another import of {final.name} is under way") from None
        # Unbuffered: what a journal line promises has left this process before the line is written.
        self._pixels = (self.folder / PIXELS).open("a+b", buffering=0)
        self._recover(fingerprint)

    def _recover(self, fingerprint: str) -> None:
        path = self.folder / JOURNAL
        header, *lines = path.read_text().splitlines() if path.exists() else [""]
        self._pixels.seek(0)
        if header == fingerprint:
            for line in lines:
                packed = self._surviving(line)
                if packed is None:
                    break
                self.done.append(packed)
        self._pixels.truncate(sum(c.count for c in self.done) * self._image_bytes)
        self._journal = path.open("w")
        self._write_line(fingerprint)
        for packed in self.done:
            self._write_line(json.dumps(asdict(packed)))

    def _surviving(self, line: str) -> PackedClass | None:
        try:
            packed = PackedClass(**json.loads(line))
        except (ValueError, TypeError):  # the line being written when the import was cut off
            return None
        pixels = self._pixels.read(packed.count * self._image_bytes)
        return packed if zlib.crc32(pixels) == packed.crc32 else None

    @property
    def _image_bytes(self) -> int:
        return self.form.channels * self.form.size**2

    def _write_line(self, line: str) -> None:
        self._journal.write(line + "\n")
        self._journal.flush()

    def add(self, name: str, split: Split, images: NDArray[np.uint8]) -> None:
        packed = PackedClass.of(name, split, images)
        remaining = np.ascontiguousarray(images).data.cast("B")
        while remaining:  # an unbuffered write may take less than it was given
            remaining = remaining[self._pixels.write(remaining) :]
        self.done.append(packed)
        self._write_line(json.dumps(asdict(packed)))

    def publish(self, source: str) -> None:
        """Describe the store and move it to its final place, in one step for anyone who looks."""
        self._pixels.seek(0)
        sha256 = hashlib.file_digest(self._pixels, "sha256").hexdigest()
        manifest = manifest_of(self.final.name, self.done, self.form, sha256, source)
        os.fsync(self._pixels.fileno())
        (self.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        move_into_place(self.folder, self.final)
        # Only now: while the folder has its old name, the lock keeps other imports from writing into it.
        (self.final / JOURNAL).unlink()
        (self.final / LOCK).unlink()
        self.close()

    def discard(self) -> None:
        self.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Stop, keeping what is packed for the next attempt."""
        for file in (self._pixels, self._journal, self._lock):
            file.close()


def move_into_place(folder: Path, final: Path) -> None:
    old = final.parent / f".{final.name}.old"
    if final.exists():
        os.rename(final, old)
    os.rename(folder, final)
    shutil.rmtree(old, ignore_errors=True)


# Import a data set: read its layout, decode every image, pack them into a store.


Progress: TypeAlias = Callable[[int, int, str], None]
"""Told after each class: images done, images in all, and the name of the class."""


def import_dataset(
    name: str,
    layout: Importer,
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
