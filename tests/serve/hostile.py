"""Files that nobody should have to decode."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import zipfile
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

from tests.serve.serving import encoded

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PHOTO = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
PNG, JPEG, WEBP = encoded(PHOTO), encoded(PHOTO, "JPEG"), encoded(PHOTO, "WEBP", lossless=True)
HTML = b"<!doctype html><script>fetch('/api/sessions', {method: 'POST'})</script>"


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def header(width: int, height: int, depth: int = 8, colour: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))


def zeros(count: int) -> bytes:
    """Compressed, without ever being in memory."""
    press, block = zlib.compressobj(1), bytes(2**20)
    parts = [press.compress(block) for _ in range(count // len(block) + 1)]
    return b"".join(parts) + press.flush()


def bomb(side: int) -> bytes:
    """A whole PNG of one bit a pixel, all of it there."""
    data = zeros(side * (side // 8 + 1))
    return SIGNATURE + header(side, side, depth=1) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def zip_bomb() -> bytes:
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("picture.png", bytes(30_000_000))
    return file.getvalue()


def tiff(*entries: tuple[int, int, int, int], following: int = 0) -> bytes:
    """Tags as (tag, type, count, value)."""
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + rows + struct.pack("<I", following)


def bmp(width: int, height: int, *, offset: int = 54, compression: int = 0) -> bytes:
    about = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, compression, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 12, 0, 0, offset) + about + bytes(12)


def gif(width: int, height: int) -> bytes:
    frame = b",\0\0\0\0" + struct.pack("<HHB", width, height, 0) + b"\x02\x02D\x01\0;"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + frame


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def jpeg_of_size(width: int, height: int) -> bytes:
    place = JPEG.index(b"\xff\xc0")
    return JPEG[: place + 5] + struct.pack(">HH", height, width) + JPEG[place + 9 :]


def webp_of_size(width: int, height: int) -> bytes:
    """An animated one, which says the size of its canvas."""
    canvas = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    parts = b"VP8X" + struct.pack("<I", 10) + b"\x02\0\0\0" + canvas
    parts += b"ANIM" + struct.pack("<I", 6) + bytes(6)
    frame = bytes(6) + struct.pack("<I", 63)[:3] * 2 + bytes(4) + WEBP[12:]
    parts += b"ANMF" + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts


FILES: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\x89",
    "text": b"this is not a picture\n" * 50,
    "zeros": bytes(2**20),
    "noise": np.random.default_rng(1).bytes(100_000),
    "JSON": json.dumps({"image": "cat.png"}).encode(),
    "HTML": HTML,
    "SVG with a script": b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>',
    "XML that includes itself": b'<!DOCTYPE a [<!ENTITY b "x"><!ENTITY c "&b;&b;&b;&b;">]><svg>&c;</svg>',
    "PDF": b"%PDF-1.7\n1 0 obj<</Type/Catalog/OpenAction 2 0 R>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF",
    "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(%pipe%id) (r) file\nshowpage\n%%EOF",
    "PostScript": b"%!PS\n(/etc/passwd) (r) file\n",
    "HTML, then JPEG": HTML + JPEG,
    "a program": b"\x7fELF\x02\x01\x01" + bytes(500),
    "a pickle": pickle.dumps({"image": [1, 2, 3]}),
    "a zip bomb": zip_bomb(),
    "gzip of a picture": gzip.compress(PNG),
    "an icon in an icon": b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0"
    + struct.pack("<II", 40, 22)
    + b"\0\0\1\0\1\0\x10\x10\0\0\1\0\x20\0" * 3,
    "PSD": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 9, 9, 8, 3) + bytes(30),
    "XPM": b'/* XPM */\nstatic char *a[] = {"1 1 1 1", "a c #000", "a"};',
    "MP4": struct.pack(">I", 24) + b"ftypisom" + bytes(12),
    "PNG, cut in half": PNG[: len(PNG) // 2],
    "PNG, signature only": SIGNATURE,
    "PNG, a wrong checksum in the header": flip(PNG, 30),
    "PNG, a wrong checksum in the data": flip(PNG, PNG.index(b"IEND") - 6),
    "PNG, damaged data": flip(PNG, PNG.index(b"IDAT") + 200),
    "PNG without data": SIGNATURE + header(9, 9) + chunk(b"IEND", b""),
    "PNG, 0×0": SIGNATURE + header(0, 0) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b""),
    "PNG, sizes beyond all": SIGNATURE + header(2**32 - 1, 2**32 - 1) + chunk(b"IEND", b""),
    "PNG, 50000×50000": bomb(50_000),
    "PNG, a little too large": bomb(5_001),
    "PNG, 1×25000000": SIGNATURE + header(1, 25_000_000) + chunk(b"IDAT", zeros(50_000_000)),
    "PNG, text that unpacks to 50 MB": SIGNATURE
    + header(9, 9)
    + chunk(b"zTXt", b"a\0\0" + zeros(50_000_000))
    + PNG[33:],
    "PNG, a colour profile that unpacks to 50 MB": SIGNATURE
    + header(64, 64, colour=2)
    + chunk(b"iCCP", b"a\0\0" + zeros(50_000_000))
    + PNG[33:],
    "PNG, a chunk of 2 GB": SIGNATURE + struct.pack(">I", 2**31 - 1) + b"IHDR" + bytes(50),
    "JPEG, cut off": JPEG[: len(JPEG) // 2],
    "JPEG, start and end only": b"\xff\xd8\xff\xd9",
    "JPEG, 65535×65535": jpeg_of_size(65535, 65535),
    "JPEG, 0×0": jpeg_of_size(0, 0),
    "GIF, 65535×65535": gif(65535, 65535),
    "GIF, 0×0": gif(0, 0),
    "GIF, cut off": encoded(PHOTO, "GIF")[:200],
    "BMP, negative width": bmp(-9, 9),
    "BMP, 0×0": bmp(0, 0),
    "BMP, data beyond its end": bmp(2, 2, offset=2**31),
    "BMP, unknown compression": bmp(2, 2, compression=77),
    "BMP, 100000×100000": bmp(100_000, 100_000),
    "TIFF, no tags": tiff(),
    "TIFF, insane tags": tiff(*[(tag, 12, 2**31 - 1, 2**31 - 1) for tag in range(254, 340)]),
    "TIFF, sizes beyond all": tiff((256, 4, 1, 2**31), (257, 4, 1, 2**31), (262, 3, 1, 1)),
    "TIFF, directories in a circle": tiff((256, 4, 1, 9), (257, 4, 1, 9), following=8),
    "TIFF, 65535 tags that are not there": b"II*\0" + struct.pack("<IH", 8, 65535),
    "WebP, cut off": WEBP[: len(WEBP) // 2],
    "WebP, a length that is a lie": WEBP[:4] + b"\xff\xff\xff\xff" + WEBP[8:100],
    "WebP, 16384×16384": webp_of_size(16384, 16384),
    "PPM, 99999999×99999999": b"P6 99999999 99999999 255\n" + bytes(100),
    "PPM, negative": b"P6 -5 5 255\n" + bytes(100),
    "PPM, 0×0": b"P6 0 0 255\n",
    "PPM, brightest 0": b"P6 5 5 0\n" + bytes(75),
    "PPM, in words": b"P3 2 2 255\n" + b"one two three four " * 20,
    "PPM, cut off": b"P6 500 500 255\n" + bytes(100),
}
