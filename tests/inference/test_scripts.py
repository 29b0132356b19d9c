"""The script of an exported file labels pictures as the package does, without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from pathaware.core.errors import UsageError
from pathaware.inference.export.export import export, script_path, write_script
from pathaware.inference.export.formats import FORMATS
from pathaware.inference.trained_model import AdaptedClassifier
from tests.inference.models import INK, PHOTO, image, model, pixels

CLASSES = ("one", "zwei", "três")
WITHOUT_US = "import runpy, sys; sys.modules['pathaware'] = None; sys.argv = sys.argv[1:]; "
WITHOUT_US += "runpy.run_path(sys.argv[0], run_name='__main__')"


def pictures_of_every_kind(folder: Path) -> list[Path]:
    """Save pictures: transparent, rotated, with a palette, 16-bit, ink on paper, not square."""
    drawn = image(1, 50)
    paper = Image.new("L", (90, 60), 240)
    ImageDraw.Draw(paper).line([(20, 10), (70, 50)], fill=10, width=6)
    clear = drawn.copy()
    clear.putalpha(Image.fromarray(np.arange(2500, dtype=np.uint8).reshape(50, 50)))
    turned = Image.Exif()
    turned[0x0112] = 6
    deep = Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40)  # up to 63,960
    kinds = {
        "plain.png": drawn,
        "clear.png": clear,
        "paper.png": paper,
        "palette.gif": drawn.convert("P"),
        "small.bmp": image(2, 5),
        "deep.png": deep,
        "wide.jpg": image(3, 40).resize((80, 30)),
        "exact.png": image(4, 28),
        "exact20.png": image(4, 20),
    }
    for name, picture in kinds.items():
        picture.save(folder / name)
    image(5, 40).save(folder / "turned.jpg", exif=turned)
    return [*(folder / name for name in kinds), folder / "turned.jpg"]


def run_script(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-I", "-c", WITHOUT_US, str(script), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, encoding="utf-8")


def exported(to: str, inputs, path: Path) -> tuple[AdaptedClassifier, Path]:
    adapted = model(inputs=inputs).adapt(pixels(6, inputs), torch.arange(6) % 3, 3)
    export(adapted, CLASSES, pixels(6, inputs), path, to)
    return adapted, path


@pytest.mark.parametrize(
    ("to", "inputs"), [("onnx", INK), ("torch", PHOTO), ("safetensors", INK), ("safetensors", PHOTO)]
)
def test_a_script_labels_pictures_of_every_kind_as_the_package_does(to, inputs, tmp_path):
    adapted, path = exported(to, inputs, tmp_path / f"my net{FORMATS[to].suffix}")
    script = write_script(path, to)
    assert script.name == "my net.py"
    given = pictures_of_every_kind(tmp_path)
    done = run_script(script, *given)
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [str(path) for path in given]
    expected, places = adapted.probabilities(adapted.image_input.stack(given)).max(1)
    assert [row[1] for row in rows] == [CLASSES[i] for i in places]
    assert max(abs(float(row[2]) - p) for row, p in zip(rows, expected.tolist(), strict=True)) < 1e-4
    assert "pathaware" not in script.read_text(encoding="utf-8")


def test_a_script_refuses_pictures_of_32_bits_as_the_package_does(tmp_path):
    adapted, path = exported("safetensors", INK, tmp_path / "net.safetensors")
    values = np.arange(1600).reshape(40, 40)
    for name, kept in (("f.tif", np.float32(values / 1600)), ("i.tif", np.int32(values % 256))):
        Image.fromarray(kept).save(tmp_path / name)
        with pytest.raises(UsageError, match="a 32-bit"):
            adapted.image_input.stack([tmp_path / name])
    for name in ("deep.tif", "deep.pgm"):
        Image.fromarray(np.uint16(values * 40)).save(tmp_path / name)
    given = [tmp_path / name for name in ("deep.tif", "deep.pgm", "f.tif", "i.tif")]
    done = run_script(write_script(path, "safetensors"), *given)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == list(map(str, given[:2]))
    assert done.stderr.count("a 32-bit image, whose range is unknown; save it as 8-bit\n") == 2


def test_a_script_passes_over_what_is_no_picture_and_says_so(tmp_path):
    _, path = exported("safetensors", INK, tmp_path / "net.safetensors")
    script = write_script(path, "safetensors")
    image(0).save(tmp_path / "good.png")
    done = run_script(script, script, tmp_path / "good.png", tmp_path / "none.png")
    assert done.returncode == 1
    assert done.stdout.startswith(f"{tmp_path / 'good.png'}\t")
    assert len(done.stdout.splitlines()) == 1
    assert len(done.stderr.splitlines()) == 2
    assert "Labels pictures" in run_script(script).stderr


def test_a_name_that_ends_a_string_stays_a_name(tmp_path):
    path = tmp_path / 'a""" "\\.onnx'
    compile(write_script(path, "onnx").read_text(encoding="utf-8"), "script", "exec")
    assert repr(path.name) in path.with_suffix(".py").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["torch.pt2", "numpy.onnx", "json.onnx"])
def test_a_script_that_would_hide_a_module_is_refused(name):
    with pytest.raises(UsageError, match="would hide the module"):
        script_path(Path(name))
