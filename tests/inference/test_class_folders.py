"""Pictures from folders and archives: those with labels, and those that want one."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from io import StringIO
from pathlib import Path

import pytest

from pathaware.core.errors import UsageError
from pathaware.data.pixels import ImageInput
from pathaware.inference.class_folders import MANY, SupportRefused, read_images, read_labelled, read_support
from tests.inference.models import PHOTO, class_folders, image

FORM = ImageInput.from_dict(PHOTO)


def packed(folder: Path, kind: str) -> Path:
    """The folder itself, or all that is in it as an archive."""
    if kind == "folder":
        return folder
    path = folder.with_suffix(f".{kind}")
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in files:
                archive.write(file, file.relative_to(folder))
    else:
        with tarfile.open(path, "w") as archive:
            for file in files:
                archive.add(file, file.relative_to(folder))
    return path


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_classes_are_folders_in_order_of_their_names(kind, tmp_path):
    folder = class_folders(tmp_path / "pets", {"zebra": 1, "ant": 3, "Ærfugl": 2})
    (folder / "ant/notes.txt").write_text("not a picture")
    (folder / ".hidden").mkdir()
    image(9).save(folder / ".hidden/x.png")
    support = read_support(packed(folder, kind), FORM)
    assert support.classes == ("ant", "zebra", "Ærfugl")
    assert support.labels.tolist() == [0, 0, 0, 1, 2, 2]
    assert support.pixels.shape == (6, 3, 20, 20)
    assert (support.pixels[3].numpy() == FORM.pixels(folder / "zebra/0.png")).all()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_an_archive_may_hold_the_folder_itself(kind, tmp_path):
    class_folders(tmp_path / "all/pets", {"ant": 2, "bee": 1})
    support = read_support(packed(tmp_path / "all", kind), FORM)
    assert (support.classes, support.labels.tolist()) == (("ant", "bee"), [0, 0, 1])
    with pytest.raises(UsageError, match="has 1 folder with"):  # a folder is what its path says
        read_support(tmp_path / "all", FORM)


def test_pictures_may_lie_deeper_in_the_folder_of_their_class(tmp_path):
    class_folders(tmp_path / "pets", {"ant/old": 1, "ant/new": 1, "bee": 1})
    assert read_support(tmp_path / "pets", FORM).classes == ("ant", "bee")


def test_every_picture_at_fault_is_named(tmp_path):
    folder = class_folders(tmp_path / "pets", {"ant": 2, "bee": 2})
    (folder / "ant/1.png").write_bytes(b"no picture")
    (folder / "bee/0.png").write_bytes((folder / "bee/1.png").read_bytes()[:60])
    image(1).save(folder / "stray.png")
    with pytest.raises(SupportRefused) as refused:
        read_support(folder, FORM)
    assert len(refused.value.problems) == 3
    assert all(
        any(name in p for p in refused.value.problems) for name in ("ant/1.png", "bee/0.png", "stray.png")
    )
    assert str(refused.value).startswith("support: ")
    assert "(and 2 more)" in str(refused.value)


def test_pictures_at_fault_can_be_left_out(tmp_path):
    folder = class_folders(tmp_path / "pets", {"ant": 1, "bee": 2, "cat": 1})
    (folder / "ant/0.png").write_bytes(b"")  # the only one of its class
    (folder / "bee/0.png").write_bytes(b"no picture")
    image(1).save(folder / "stray.png")
    found = read_labelled(folder, FORM, skip=True)
    assert (found.support.classes, found.support.labels.tolist()) == (("bee", "cat"), [0, 1])
    assert [Path(name).parent.name for name in found.names] == ["bee", "cat"]
    assert found.empty == ("ant",)
    assert len(found.problems) == 3
    assert any(line.endswith("ant/0.png: the file is empty") for line in found.problems)
    (folder / "cat/0.png").write_bytes(b"")
    with pytest.raises(SupportRefused):  # a single class is left
        read_labelled(folder, FORM, skip=True)


def test_pictures_without_class_folders_are_refused_in_one_sentence(tmp_path):
    image(1).save(class_folders(tmp_path / "pets", {"ant": 2}) / "ant/more.png")
    with pytest.raises(UsageError, match="ant has pictures but no class folders; put the pictures of each"):
        read_support(tmp_path / "pets/ant", FORM)


def test_the_folder_above_the_class_folders_is_recognised(tmp_path):
    class_folders(tmp_path / "all", {"pets/ant": 1, "pets/bee": 1})
    with pytest.raises(UsageError, match=r"if the folders in pets are the classes, name .*all/pets$"):
        read_support(tmp_path / "all", FORM)


@pytest.mark.parametrize("classes", [1, 101])
def test_too_few_or_too_many_classes_are_refused(classes, tmp_path):
    class_folders(tmp_path / "pets", {f"c{i}": 1 for i in range(classes)})
    with pytest.raises(UsageError, match=f"has {classes} folders? with pictures; 2 to 100"):
        read_support(tmp_path / "pets", FORM)


@pytest.mark.parametrize("name", ["nowhere", "empty", "text.txt"])
def test_what_holds_no_pictures_is_refused_by_the_name_of_its_option(name, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("text")
    for option, read in (("support", read_support), ("images", read_images)):
        with pytest.raises(UsageError, match=f"^{option}: .*{name}"):
            read(tmp_path / name, FORM)


@pytest.mark.parametrize("kind", ["folder", "zip", "tar"])
def test_pictures_are_found_at_any_depth_and_bad_ones_left_out(kind, tmp_path):
    folder = class_folders(tmp_path / "new", {"a": 2, "b/c": 1})
    image(7).save(folder / "top.JPG")
    (folder / "a/0.png").write_bytes(b"")
    found, pixels, problems = read_images(packed(folder, kind), FORM)
    start = f"{folder}/" if kind == "folder" else f"{folder}.{kind}:"
    assert [image.label for _, image in found] == [
        start + name for name in ("a/1.png", "b/c/0.png", "top.JPG")
    ]
    assert pixels.shape == (3, 3, 20, 20)
    (problem,) = problems
    assert "a/0.png: the file is empty" in problem


def test_one_picture_may_be_given_by_itself(tmp_path):
    image(7).save(tmp_path / "one.png")
    ((_, one),), pixels, problems = read_images(tmp_path / "one.png", FORM)
    assert (one.label, len(pixels), problems) == (str(tmp_path / "one.png"), 1, [])
    (tmp_path / "one.png").write_bytes(b"nothing")
    names, pixels, problems = read_images(tmp_path / "one.png", FORM)
    assert (names, pixels.shape, len(problems)) == ([], (0, 3, 20, 20), 1)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_reading_many_pictures_shows_progress_on_a_terminal(tmp_path, monkeypatch):
    (tmp_path / "few").mkdir()
    for name in [f"few/{i}.png" for i in range(2)] + [f"{i}.png" for i in range(MANY)]:
        image(0).save(tmp_path / name)
    for source, shown in ((tmp_path / "few", False), (tmp_path, True)):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        found, _, problems = read_images(source, ImageInput.from_dict(PHOTO))
        assert len(found) == (MANY + 2 if shown else 2)
        assert not problems
        assert ("reading" in terminal.getvalue()) is shown
