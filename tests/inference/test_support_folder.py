"""Support sets in folders: edits, undo, and the same network as from scratch."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from pathaware.core.errors import UsageError
from pathaware.inference.support_folder import HISTORY, SupportFolder
from tests.inference.models import image, model, pixels


@pytest.fixture
def folder(tmp_path) -> SupportFolder:
    made = SupportFolder(tmp_path / "support")
    for label, seed in (("a", 0), ("a", 1), ("b", 2), ("b", 3)):
        made.add(label, image(seed))
    return made


def network_bits(folder: SupportFolder) -> list[torch.Tensor]:
    trained = model(ways=2)
    support = folder.support_set(trained.image_input)
    torch.manual_seed(0)
    adapted = trained.adapt(support.pixels, support.labels, len(support.classes))
    return [adapted.probabilities(pixels(4, seed=9)), *adapted.network.parameters()]


def test_every_edit_and_its_undoing(folder):
    before = folder.images()
    first = before["a"][0]
    edits = {
        "add": lambda: folder.add("c", image(7)),
        "remove": lambda: folder.remove(first),
        "remove class": lambda: folder.remove_class("b"),
        "rename": lambda: folder.rename("a", "alpha"),
        "correct": lambda: folder.correct(first, "b"),
    }
    for name, edit in edits.items():
        edit()
        assert folder.images() != before
        assert folder.undo() == name
        assert folder.images() == before
    assert len(folder.history()) == 4  # the images of the fixture


def test_a_reopened_folder_knows_its_history(folder):
    folder.rename("a", "alpha")
    again = SupportFolder(folder.folder)
    assert [what for what, _ in again.history()] == ["add"] * 4 + ["rename"]
    while again.undo():
        pass
    assert again.images() == {}


def test_an_edited_set_is_learned_like_a_new_one_to_the_last_bit(folder, tmp_path):
    folder.correct(folder.images()["a"][1], "b")
    folder.add("a", image(4))
    folder.remove(folder.images()["b"][0])
    folder.rename("b", "z")
    folder.undo()
    scratch = SupportFolder(tmp_path / "scratch")
    for label, names in reversed(folder.images().items()):
        for name in reversed(names):
            scratch.add(label, folder.folder / name)
    for edited, new in zip(network_bits(folder), network_bits(scratch), strict=True):
        assert torch.equal(edited, new)


def test_any_folder_of_classes_can_be_edited(tmp_path):
    for label in "ab":
        (tmp_path / label).mkdir()
        image(ord(label)).save(tmp_path / label / "one.png")
    folder = SupportFolder(tmp_path)
    folder.correct("a/one.png", "b")
    assert folder.images() == {"b": ["b/one-2.png", "b/one.png"]}
    folder.undo()
    assert folder.images() == {"a": ["a/one.png"], "b": ["b/one.png"]}


def test_arrays_and_tensors_are_kept_exactly(tmp_path):
    folder = SupportFolder(tmp_path / "s")
    grey = pixels(1)[0]
    name = folder.add("a", grey)
    assert (torch.tensor(list(Image.open(folder.folder / name).tobytes())) == grey.flatten()).all()


@pytest.mark.parametrize("label", ["", ".hidden", "a/b", "a\\b", "x" * 300])
def test_labels_that_are_no_folder_names_are_refused(folder, label):
    with pytest.raises(UsageError, match="cannot be the name of a folder") as error:
        folder.add(label, image(1))
    assert error.value.field == "label"


def test_what_is_not_there_is_named(folder, tmp_path):
    with pytest.raises(UsageError, match=r"has no image a/none\.png"):
        folder.remove("a/none.png")
    with pytest.raises(UsageError, match="has no class 'c'"):
        folder.rename("c", "d")
    with pytest.raises(UsageError, match="a class 'b' already"):
        folder.rename("a", "b")
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(UsageError, match="not an image"):
        folder.add("a", tmp_path / "text.png")
    (folder.folder / HISTORY).write_text(json.dumps({"edit": 1}) + "\n")
    with pytest.raises(UsageError, match=r"history\.jsonl is damaged"):
        folder.undo()
