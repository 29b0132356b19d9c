"""A damaged or hostile archive is read, or refused in one line per problem, and nothing is left behind."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.image_trees import encoded
from tests.fuzz.archives import FILES, KINDS, NAMES, add, mutated, tar_bytes, zip_bytes
from tests.fuzz.calling import MOST_LINES, Called, call

LINES = {
    "import": "data import mine --from x.archive --data-dir data --size 8",
    "support": "predict glyphs --support x.archive --images one.png --out o.csv",
    "images": "predict glyphs --support good.zip --images x.archive --out o.csv",
    "export": "export glyphs --support x.archive --to safetensors --out o.safetensors",
    "learn": "learn x.archive --model glyphs --out o",
    "suggest": "suggest glyphs --support good.zip --images x.archive",
}
OTHERS = [command for command in LINES if command != "import"]


def try_archive(content: bytes, command: str = "import") -> Called:
    def prepare() -> None:
        Path("x.archive").write_bytes(content)
        Path("one.png").write_bytes(encoded(1))
        Path("good.zip").write_bytes(zip_bytes())

    called = call(LINES[command].split(), prepare)
    errors = called.lines
    assert called.code in (0, 2) or (command in ("images", "suggest") and called.code == 1), called
    assert len(errors) <= MOST_LINES, called
    assert all(line.isprintable() for line in errors), called
    if called.code == 2:
        assert errors[-1].startswith("error: "), called
        assert "x.archive" in errors[-1], called
        assert not called.left, called
    return called


@pytest.mark.parametrize("kind", KINDS)
def test_undamaged_archives_are_read(kind):
    assert try_archive(KINDS[kind]()).code == 0


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_archives(kind):
    refused = sum(try_archive(mutated(kind, seed)).code == 2 for seed in range(12))
    assert refused >= 3  # or the mutations would be harmless


@pytest.mark.parametrize("command", OTHERS)
def test_mutated_archives_given_to_other_commands(command):
    for seed in range(2):
        for kind in KINDS:
            try_archive(mutated(kind, seed), command)


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHERS)
def test_two_hundred_mutated_archives_given_to_each_other_command(command):
    for seed in range(2, 22):
        for kind in KINDS:
            try_archive(mutated(kind, seed), command)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_five_hundred_mutated_archives_of_each_kind(kind):
    for seed in range(12, 512):
        try_archive(mutated(kind, seed))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pack", [zip_bytes, tar_bytes])
def test_members_with_strange_names(pack: Callable[..., bytes], name: str) -> None:
    try_archive(pack(extra={name: encoded(1)}))


def test_names_that_start_at_the_current_folder_are_read() -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:  # what `tar c .` makes
        here = tarfile.TarInfo(".")
        here.type = tarfile.DIRTYPE
        archive.addfile(here)
        for name, content in FILES.items():
            add(archive, f"./{name}", content)
    assert try_archive(file.getvalue()).code == 0


def test_backslashes_separate_folders_in_zips_made_on_windows() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(name.replace("/", "\\"), content)
    assert try_archive(file.getvalue()).code == 0


def _sparse() -> bytes:
    """A tar of a few kilobytes with a member of 12 GB, nearly all of it a hole (GNU sparse 1.0)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        content = b"1\n0\n512\n".ljust(512, b"\0") + bytes(512)
        name = "train/a/large.png"
        sparse = {"major": "1", "minor": "0", "name": name, "realsize": str(12 * 10**9)}
        add(archive, name, content, {f"GNU.sparse.{key}": value for key, value in sparse.items()})
        for name, content in FILES.items():
            add(archive, name, content)
    return file.getvalue()


def _encrypted() -> bytes:
    content = bytearray(zip_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(signature)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(signature, at + 4)
    return bytes(content)


def _method(number: int) -> bytes:
    content = bytearray(zip_bytes())
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        struct.pack_into("<H", content, content.find(signature) + offset, number)
    return bytes(content)


def _bad_crc() -> bytes:
    content = bytearray(zip_bytes(zipfile.ZIP_STORED))
    content[content.find(b"IDAT") + 6] ^= 0xFF
    return bytes(content)


def _latin1() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for name, content in {**FILES, "train/café/1.png": encoded(1)}.items():
            add(archive, name, content)
    return file.getvalue()


def _moved_directory() -> bytes:
    content = bytearray(zip_bytes())
    struct.pack_into("<I", content, len(content) - 6, 7)
    return bytes(content)


def _other_name() -> bytes:
    content = bytearray(zip_bytes())
    at = content.find(b"train/a/0.png")
    content[at : at + 5] = b"Train"
    return bytes(content)


DAMAGES = {
    "truncated tar": (lambda: tar_bytes()[:1500], ""),
    "sparse tar": (_sparse, "train/a/large.png: more than"),
    "encrypted zip": (_encrypted, "encrypted"),
    "unknown compression method": (lambda: _method(97), "train/a/0.png"),
    "bad CRC": (_bad_crc, "train/a/0.png"),
    "broken central directory": (_moved_directory, ""),
    "local name differs": (_other_name, "train/a/0.png"),
    "name that is not UTF-8": (_latin1, "UTF-8"),
    "noise behind a gzip header": (lambda: b"\x1f\x8b\x08\x00" + bytes(range(256)), ""),
    "truncated gzip": (lambda: tar_bytes("w:gz")[:200], ""),
    "damaged LZMA": (
        lambda: zip_bytes(zipfile.ZIP_LZMA).replace(b"\x5d\x00\x00", b"\xff\xff\xff", 1),
        "train",
    ),
}


@pytest.mark.parametrize("command", LINES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_named(damage: str, command: str) -> None:
    make, named = DAMAGES[damage]
    called = try_archive(make(), command)
    assert called.code in (1, 2), called
    assert named in called.errors, called
