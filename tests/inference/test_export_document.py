"""The code blocks of docs/export.md work as described."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from pathaware.cli import main
from pathaware.inference.class_folders import read_support
from pathaware.inference.trained_model import TrainedModel
from tests.inference.models import class_folders, save_run

DOCUMENT = Path(__file__).parents[2] / "docs/export.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """With a run called glyphs, its exports, labelled pictures and a new one."""
    path = tmp_path_factory.mktemp("document")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        save_run(path / "glyphs")
        class_folders(path / "letters", {"alpha": 2, "beta": 1, "gamma": 3})
        picture = Image.new("L", (80, 60), 255)
        ImageDraw.Draw(picture).line([(20, 10), (60, 50), (60, 10)], fill=0, width=6)
        picture.save("picture.png")
        for to in ("onnx", "torch", "safetensors"):
            with pytest.raises(SystemExit) as left:
                main(["export", "glyphs", "--support", "letters", "--to", to])
            assert not left.value.code
    return path


@pytest.mark.parametrize("block", BLOCKS, ids=["onnx", "torch", "safetensors", "python"])
def test_a_block_of_the_document_does_what_it_says(block, folder):
    done = subprocess.run(
        [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    if "pathaware" in block:
        assert float(done.stdout) < 1e-5
        return
    model = TrainedModel.open(folder / "glyphs", "cpu")
    support = read_support(folder / "letters", model.image_input)
    adapted = model.adapt(support.pixels, support.labels, 3)
    ((expected, place),) = zip(
        *adapted.probabilities(model.pixels([folder / "picture.png"])).max(1), strict=True
    )
    label, probability = done.stdout.split()
    assert label == support.classes[place]
    assert abs(float(probability) - expected) < 1e-4
