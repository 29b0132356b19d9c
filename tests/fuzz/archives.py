"""Archives of class folders, damaged in ways that disks, networks and strangers damage them."""

from __future__ import annotations

import io
import random
import tarfile
import zipfile
from collections.abc import Callable

from tests.data.image_trees import encoded

FILES = {f"train/{c}/{i}.png": encoded(3 * i, 8) for c in ("a", "b") for i in range(2)}
NAMES = [".", "", "./", "a\x00b.png", "..", "/etc/passwd", "a" * 300 + ".png", "train/\u200b/1.png"]
NAMES += ["train/a", "\\", "c:x.png"]


def zip_bytes(method: int = zipfile.ZIP_DEFLATED, extra: dict[str, bytes] | None = None) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in {**FILES, **(extra or {})}.items():
            archive.writestr(zipfile.ZipInfo(name) if name else _nameless(), content, method)
    return file.getvalue()


def _nameless() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("x")
    info.filename = ""
    return info


def tar_bytes(
    mode: str = "w", extra: dict[str, bytes] | None = None, form: int = tarfile.PAX_FORMAT
) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=form) as archive:  # type: ignore[call-overload]
        for name, content in {**FILES, **(extra or {})}.items():
            add(archive, name, content)
    return file.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes, headers: dict[str, str] | None = None) -> None:
    """Add a file to a tar; `headers` are those of its PAX format."""
    member = tarfile.TarInfo(name)
    member.size, member.pax_headers = len(content), headers or {}
    archive.addfile(member, io.BytesIO(content))


KINDS: dict[str, Callable[..., bytes]] = {
    "stored.zip": lambda **k: zip_bytes(zipfile.ZIP_STORED, **k),
    "deflated.zip": lambda **k: zip_bytes(zipfile.ZIP_DEFLATED, **k),
    "bzip2.zip": lambda **k: zip_bytes(zipfile.ZIP_BZIP2, **k),
    "lzma.zip": lambda **k: zip_bytes(zipfile.ZIP_LZMA, **k),
    "plain.tar": lambda **k: tar_bytes("w", **k),
    "gnu.tar": lambda **k: tar_bytes("w", form=tarfile.GNU_FORMAT, **k),
    "ustar.tar": lambda **k: tar_bytes("w", form=tarfile.USTAR_FORMAT, **k),
    "gzip.tar.gz": lambda **k: tar_bytes("w:gz", **k),
    "bzip2.tar.bz2": lambda **k: tar_bytes("w:bz2", **k),
    "xz.tar.xz": lambda **k: tar_bytes("w:xz", **k),
}


def mutated(kind: str, seed: int) -> bytes:
    """An archive of this kind with one to four random changes, the same ones for the same seed."""
    chance = random.Random(f"{kind} {seed}")
    extra = {chance.choice(NAMES): encoded(1)} if chance.random() < 0.2 else {}
    try:
        content = bytearray(KINDS[kind](extra=extra))
    except (ValueError, UnicodeError):  # a name that this kind of archive cannot hold
        content = bytearray(KINDS[kind]())
    for _ in range(chance.randint(1, 4)):
        change(content, chance)
    return bytes(content)


def change(content: bytearray, chance: random.Random) -> None:
    """Damage some bytes."""
    at = chance.randrange(len(content)) if content else 0
    length = min(chance.choice((1, 2, 4, 30, 512)), max(len(content) - at, 0))
    how = chance.randrange(8)
    if how == 0:
        del content[at:]  # cut short
    elif how == 1:
        del content[at : at + length]
    elif how == 2:
        content[at : at + length] = chance.randbytes(length)
    elif how == 3:
        content[at:at] = chance.randbytes(length)
    elif how == 4:
        content[at : at + length] = bytes(length)
    elif how == 5:
        content[at : at + length] = b"\xff" * length
    elif how == 6 and content:
        content[at] ^= 1 << chance.randrange(8)
    else:  # in the last bytes is a zip's directory, in the first a compressor's header
        end = chance.choice((len(content) - 1, len(content) - 22, 10, 3))
        if 0 <= end < len(content):
            content[end] = chance.randrange(256)
