"""Import a data set: read its images, decode them, and pack them into a store.

A store appears only when it is complete. An interrupted import resumes where it stopped.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.writing import (
    Lock,
    Locked,
    beside,
    make_folder,
    open_to_write,
    remove_file,
    remove_folder,
    replace_file,
    replace_folder,
)
from pathaware.data.catalogue import store_folder
from pathaware.data.importers.source import (
    Importer,
    ImportRefused,
    Listing,
    Pixels,
    SourceClass,
    SourceImage,
)
from pathaware.data.pixels import BadImage, ImageFormat, decode
from pathaware.data.store import (
    MANIFEST,
    PIXELS,
    ClassSpan,
    ImageStore,
    Manifest,
    Split,
    checksum,
    counted,
)

JOURNAL = "journal.jsonl"
THREADS = 8
"""At most this many images are decoded at a time, each of up to `MAX_PIXELS` pixels."""
LONG = 0.005
"""Seconds that decoding an image takes at least for threads to pay."""

ImportProgress: TypeAlias = Callable[[int, int, str], None]
"""Called after each class with images done, images in total, and the name of the class."""


@dataclass(frozen=True)
class Skip:
    """Leaves out images that cannot be read: each is passed to `note`, as a line that names it.

    Every class needs `least` other images.
    """

    note: Callable[[str], None]
    least: int = 1

    def too_few(self, source: SourceClass, bad: Sequence[str]) -> list[str]:
        """Note the bad images of a class; return its problem if too few others remain."""
        for line in bad:
            self.note(f"left out: {line}")
        left = len(source.images) - len(bad)
        found = f"class {source.name}: {counted(left, 'image')} can be read, at least {self.least} expected"
        return [found] if left < self.least else []


@dataclass(frozen=True)
class PackedClass:
    """A class that has been written. The sums are exact integers, so a resumed import gives the same mean."""

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
    """Describe packed classes; mean and standard deviation are those of the training split."""
    training = [c for c in classes if c.split == "train"]
    pixels = sum(c.count for c in training) * form.size**2
    mean, std = [], []
    for channel in range(form.channels):
        first = sum(c.sums[channel] for c in training) / pixels
        second = sum(c.squares[channel] for c in training) / pixels
        mean.append(first / 255)
        # At least one grey level: blank images must not cause a division by zero.
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
    """Make a store without a folder from the images `[n, C, H, W]` of each class."""
    pixels = torch.from_numpy(np.concatenate([images for _, _, images in classes]))
    packed = [PackedClass.of(*c) for c in classes]
    return ImageStore(manifest_of(name, packed, form, checksum(pixels), source), pixels)


def _journal_line(packed: PackedClass) -> str:
    return _checked_line(json.dumps(asdict(packed)))


def _checked_line(content: str) -> str:
    return f"{zlib.crc32(content.encode()):08x} {content}"


class PartialStore:
    """A store being written, in a hidden folder beside its final one.

    The journal has one line per finished class. A second import with the same `fingerprint` keeps the
    classes whose pixels still match their line; with another fingerprint it starts from scratch.
    """

    def __init__(self, final: Path, form: ImageFormat, fingerprint: str) -> None:
        self.final, self.form = final, form
        self.folder = beside(final, "partial")
        self.done: list[PackedClass] = []
        make_folder(final.parent)
        try:
            self._lock = Lock(beside(final, "lock"))
        except Locked:
            raise UsageError(f"{final}: another import of {final.name} is under way") from None
        make_folder(self.folder, within=final.parent)
        self._pixels = open_to_write(self.folder / PIXELS, final.parent, "a+b")
        self._recover(fingerprint)

    def _recover(self, fingerprint: str) -> None:
        path = self.folder / JOURNAL
        # A process that is killed while it writes may leave an empty file or half a line.
        text = read_file(path).decode(errors="replace") if path.exists() else ""
        header, *lines = text.splitlines() or [""]
        self._pixels.seek(0)
        if header == fingerprint:
            for line in lines:
                packed = self._surviving(line)
                if packed is None:
                    break
                self.done.append(packed)
        self._pixels.truncate(sum(c.count for c in self.done) * self._image_bytes)
        self._journal = open_to_write(path, self.final.parent)
        self._write_line(fingerprint)
        for packed in self.done:
            self._write_line(_journal_line(packed))

    def _surviving(self, line: str) -> PackedClass | None:
        """Return the class of a journal line if both the line and the pixels are undamaged."""
        _, _, content = line.partition(" ")
        if line != _checked_line(content):
            return None
        packed = PackedClass(**json.loads(content))
        pixels = self._pixels.read(packed.count * self._image_bytes)
        return packed if zlib.crc32(pixels) == packed.crc32 else None

    @property
    def _image_bytes(self) -> int:
        return self.form.channels * self.form.size**2

    def _write_line(self, line: str) -> None:
        self._journal.write(f"{line}\n".encode())

    def add(self, name: str, split: Split, images: NDArray[np.uint8]) -> None:
        """Append a class."""
        images = np.ascontiguousarray(images)  # decoded images have their channels last in memory
        packed = PackedClass.of(name, split, images)
        remaining = images.data.cast("B")
        while remaining:  # an unbuffered write may be partial
            remaining = remaining[self._pixels.write(remaining) :]
        self.done.append(packed)
        self._write_line(_journal_line(packed))

    def publish(self, source: str) -> None:
        """Write the manifest and move the store to its final folder in one step."""
        self._pixels.seek(0)
        sha256 = hashlib.file_digest(self._pixels, "sha256").hexdigest()
        manifest = manifest_of(self.final.name, self.done, self.form, sha256, source)
        os.fsync(self._pixels.fileno())
        replace_file(self.folder / MANIFEST, manifest.to_json(), within=self.folder)
        self._close_files()
        remove_file(self.folder / JOURNAL, within=self.folder)
        replace_folder(self.folder, self.final)
        self.close()

    def discard(self) -> None:
        """Delete everything packed so far."""
        self._close_files()
        remove_folder(self.folder)
        self.close()

    def close(self) -> None:
        """Stop, keeping what is packed for the next attempt."""
        self._close_files()
        self._lock.release()

    def _close_files(self) -> None:
        self._pixels.close()
        self._journal.close()


def import_dataset(
    name: str,
    importer: Importer,
    source: Path,
    data_dir: Path | None = None,
    *,
    replace: bool = False,
    progress: ImportProgress | None = None,
    skip: Skip | None = None,
) -> ImageStore:
    """Read `source` with the given importer and store it as `name`.

    The store appears only when complete. An interrupted import resumes when it is repeated; one refused for
    bad images (the error names them all) leaves nothing behind. With `skip` bad images are left out instead.
    """
    folder = store_folder(name, data_dir)
    if folder.exists() and not replace:
        raise UsageError(
            f"is needed to import {name} again; it is already imported, in {folder}", field="replace"
        )
    listing = importer.read(source)
    new = not folder.parent.exists()
    try:
        fingerprint = _fingerprint(listing, importer.format, skip)
        partial = PartialStore(folder, importer.format, fingerprint)
        try:
            shown = progress or (lambda done, total, name: None)
            problems = _pack(listing, importer.format, partial, shown, skip)
            if problems:
                partial.discard()
                raise ImportRefused(source, problems, unreadable=skip is None)
            partial.publish(listing.origin)
        finally:
            partial.close()
            if new:
                with suppress(OSError):  # it holds something
                    folder.parent.rmdir()
    except OSError as error:  # read errors are among the problems; this is a full or read-only disk
        raise UsageError(f"{folder.parent}: cannot be written ({error.strerror})") from None
    return ImageStore.open(folder)


def _pack(
    listing: Listing,
    form: ImageFormat,
    partial: PartialStore,
    progress: ImportProgress,
    skip: Skip | None = None,
) -> list[str]:
    """Decode and write the remaining classes; return the problems of all images."""
    problems: list[str] = []
    total = sum(len(c.images) for c in listing.classes)
    done = sum(len(c.images) for c in listing.classes[: len(partial.done)])
    with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS)) as pool, warnings.catch_warnings():
        from PIL import Image

        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for source in listing.classes[len(partial.done) :]:
            decoded = _load_all(source.images, form, pool)
            bad = [d for d in decoded if isinstance(d, str)]
            if skip is None:
                problems += bad
            else:
                problems += skip.too_few(source, bad)
            # After the first problem nothing is written, but the rest is decoded to name all of them.
            if not problems:
                pixels = np.stack([d for d in decoded if not isinstance(d, str)])
                partial.add(source.name, source.split, np.rot90(pixels, source.quarter_turns, axes=(2, 3)))
            done += len(source.images)
            progress(done, total, source.name)
    return problems


def _load_all(images: Sequence[SourceImage], form: ImageFormat, pool: Executor) -> list[Pixels | str]:
    """Decode the images of a class, in threads if the first one takes long, as large photographs do.

    For small images threads would wait for the interpreter's lock longer than they decode.
    """
    load = functools.partial(_load, form=form)
    started = time.perf_counter()
    first = [load(image) for image in images[:1]]
    decode_rest = pool.map if time.perf_counter() - started > LONG else map
    return [*first, *decode_rest(load, images[1:])]


def _load(image: SourceImage, form: ImageFormat) -> Pixels | str:
    try:
        return decode(image.read(), form)
    except BadImage as error:
        return error.named(image.label)
    except UsageError as error:  # names the file or member already
        return error.message


def _fingerprint(listing: Listing, form: ImageFormat, skip: Skip | None = None) -> str:
    """Hash what must be unchanged for packed classes to be kept: the format, all images in order, and whether
    bad ones are left out."""

    def described(source: SourceClass) -> object:
        return source.name, source.split, source.quarter_turns, [i.label for i in source.images]

    digest = hashlib.sha256(repr(form).encode())
    if skip is not None:
        digest.update(b"skip")
    for source in listing.classes:
        digest.update(json.dumps(described(source)).encode())
    return digest.hexdigest()
