"""Pictures in every form people have them become what the network was trained on."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from pathaware.core.errors import UsageError
from pathaware.data.pixels import BadImage, ImageInput

GREY = ImageInput(12, 1, False, (0.5,), (0.25,))
COLOUR = ImageInput(12, 3, False, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
INK = ImageInput(12, 1, True, (0.1,), (0.3,))


def drawn(size: int = 12) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def forms() -> dict[str, object]:
    pixels = drawn()
    return {
        "bytes": encoded(Image.fromarray(pixels)),
        "image": Image.fromarray(pixels),
        "array [H, W, 3]": pixels,
        "array [3, H, W]": pixels.transpose(2, 0, 1),
        "whole numbers": pixels.astype(np.int64),
        "fractions": pixels / 255,
        "tensor": torch.from_numpy(pixels),
        "tensor of fractions": torch.from_numpy(pixels).permute(2, 0, 1) / 255,
        "transparent nowhere": Image.fromarray(pixels).convert("RGBA"),
        "bitmap": encoded(Image.fromarray(pixels), "BMP"),
        "webp": encoded(Image.fromarray(pixels), "WEBP", lossless=True),
        "tiff": encoded(Image.fromarray(pixels), "TIFF"),
    }


@pytest.mark.parametrize("name", forms())
def test_one_picture_in_any_form_gives_the_same_pixels(name, tmp_path):
    assert (COLOUR.pixels(forms()[name]) == drawn().transpose(2, 0, 1)).all()


def test_a_path_may_be_text_or_a_path(tmp_path):
    (tmp_path / "x.png").write_bytes(forms()["bytes"])
    for path in (tmp_path / "x.png", str(tmp_path / "x.png")):
        assert (COLOUR.pixels(path) == drawn().transpose(2, 0, 1)).all()


def test_grey_numbers_and_bits_are_pictures():
    grey = drawn()[:, :, 0]
    for picture in (grey, grey[:, :, None], grey[None], torch.from_numpy(grey)):
        assert (GREY.pixels(picture) == grey).all()
    assert (COLOUR.pixels(grey) == grey).all()
    assert set(np.unique(GREY.pixels(grey > 127))) == {0, 255}


@pytest.mark.parametrize("form", [GREY, COLOUR])
@pytest.mark.parametrize("size", [(3, 5), (100, 40), (12, 12)])
def test_pictures_of_any_size_become_squares(form, size):
    assert form.pixels(Image.new("RGB", size, "white")).shape == form.shape


def test_what_is_transparent_lies_on_white():
    clear = Image.new("RGBA", (12, 12), (0, 0, 0, 0))
    assert (COLOUR.pixels(clear) == 255).all()
    half = Image.new("LA", (12, 12), (0, 128))
    assert abs(int(GREY.pixels(half)[0, 0, 0]) - 127) <= 1
    palette = Image.fromarray(drawn()).convert("P")
    place = palette.getpixel((0, 0))
    assert (COLOUR.pixels(encoded(palette, "PNG", transparency=place))[:, 0, 0] == 255).all()
    assert (COLOUR.pixels(encoded(palette, "PNG"))[:, 0, 0] != 255).any()


def test_a_palette_is_looked_up():
    image = Image.fromarray(drawn()).convert("P")
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
    assert (COLOUR.pixels(encoded(image, "GIF")) == expected).all()


def test_a_photograph_is_turned_as_its_camera_was_held():
    upright = drawn()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    held = Image.fromarray(np.rot90(upright).copy())
    assert (COLOUR.pixels(encoded(held, "PNG", exif=exif)) == upright.transpose(2, 0, 1)).all()


def test_sixteen_bits_of_grey_become_eight():
    """Black stays black and white white, and what lies between stays between."""
    ramp = np.linspace(0, 65535, 144).astype(np.uint16).reshape(12, 12)
    found = GREY.pixels(encoded(Image.fromarray(ramp))).reshape(-1).astype(int)
    assert (found[0], found[-1]) == (0, 255)
    assert abs(found[72] - 128) < 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_read_alike_from_all_files_also_if_they_are_dark(kind):
    """PPM files, and PNG files in some versions of Pillow, have the mode of 32-bit images."""
    for brightest in (200, 300, 65535):
        ramp = np.linspace(0, brightest, 144).astype(np.uint16).reshape(12, 12)
        assert (GREY.pixels(encoded(Image.fromarray(ramp), kind))[0] == ramp >> 8).all()
    held = Image.fromarray(ramp.astype(np.int32))  # in memory
    assert (GREY.pixels(held)[0] == ramp >> 8).all()


def test_thirty_two_bits_are_refused_because_their_range_is_unknown():
    """Read as 16 bits, or cut at 255, they would be black or white."""
    ramp = np.arange(144).reshape(12, 12)
    for values, kind in (
        (np.float32(ramp / 144), "float"),
        (np.float32(ramp), "float"),
        (np.int32(ramp), "integer"),
        (np.int32(ramp * 400), "integer"),
    ):
        with pytest.raises(BadImage, match=f"a 32-bit {kind} image, .*; save it as 8-bit"):
            COLOUR.pixels(encoded(Image.fromarray(values), "TIFF"))
    for held in (np.float32(ramp / 144), np.int32(ramp), np.int32(ramp * 1000), np.int32(-ramp * 10)):
        with pytest.raises(BadImage, match="a 32-bit"):
            COLOUR.pixels(Image.fromarray(held))


def test_dark_ink_on_paper_is_inverted_where_the_network_knows_bright_ink():
    paper = np.full((12, 12), 250, np.uint8)
    paper[4:8, 5:7] = 20
    for picture in (paper, 255 - paper):
        assert (INK.pixels(picture)[0] == 255 - paper).all()
        assert (GREY.pixels(picture)[0] == picture).all()


def test_a_drawing_on_nothing_is_ink_on_paper():
    """Drawing programs save strokes on a transparent ground."""
    strokes = np.zeros((12, 12, 4), np.uint8)
    strokes[4:8, 5:7, 3] = 255
    found = INK.pixels(encoded(Image.fromarray(strokes)))[0]
    assert (found[4:8, 5:7] == 255).all()
    assert found.sum() == 8 * 255


@pytest.mark.parametrize(
    ("picture", "why"),
    [
        (np.full((4, 4), 1.01), "between 0 and 1"),
        (np.full((4, 4), -0.01), "between 0 and 1"),
        (np.full((4, 4), np.nan), "between 0 and 1"),
        (np.full((4, 4), 256), "between 0 and 255"),
        (np.full((4, 4), -1), "between 0 and 255"),
        (np.zeros((4, 4, 2)), "is not an image"),
        (np.zeros((0, 4)), "is not an image"),
        (np.zeros(4), "is not an image"),
        (np.zeros((4, 4), complex), "is not numeric"),
        (np.full((4, 4), "a"), "is not numeric"),
        (b"", "is empty"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
        ("/nowhere/x.png", "cannot be read"),
    ],
)
def test_what_is_no_picture_is_refused_with_a_reason(picture, why):
    with pytest.raises(BadImage, match=why):
        COLOUR.pixels(picture)


def test_a_stack_names_the_one_at_fault():
    good = drawn()
    assert COLOUR.stack([good, good]).shape == (2, 3, 12, 12)
    assert COLOUR.stack([]).shape == (0, 3, 12, 12)
    with pytest.raises(UsageError, match=r"^X\[1\]: an array of shape"):
        COLOUR.stack([good, np.zeros(3)], "X")
    with pytest.raises(UsageError, match=r"^nowhere\.png: cannot be read"):
        COLOUR.stack([good, "nowhere.png"])


def test_normalising_takes_pixels_to_zero_mean_and_unit_variance():
    pixels = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 12, 12)
    found = COLOUR.normalised(pixels)
    assert found.dtype == torch.float32
    expected = torch.tensor([[-2.5, -2.0, -1.5], [2.5, 3.0, 3.5]], dtype=torch.float32)
    assert torch.allclose(found[:, :, 0, 0], expected, atol=1e-6)


def test_a_form_is_kept_as_text_and_comes_back():
    assert ImageInput.from_dict(COLOUR.to_dict()) == COLOUR
