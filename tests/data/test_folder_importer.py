from __future__ import annotations

from pathlib import Path

import pytest

from pathaware.core.errors import UsageError
from pathaware.data.importers.folder import FolderImporter
from pathaware.data.importers.source import ImportRefused, Listing
from pathaware.data.store import SPLITS
from tests.data.image_trees import class_folder, encoded, write


def grouped(listing: Listing) -> dict[str, list[str]]:
    return {split: [c.name for c in listing.classes if c.split == split] for split in SPLITS}


def test_sub_folders_are_the_split_when_nothing_else_is_said(tmp_path: Path) -> None:
    for name in ("train/cat", "train/birds/owl", "valid/dog", "Test/fox"):
        class_folder(tmp_path / name, 2)
    assert grouped(FolderImporter().read(tmp_path)) == {
        "train": ["birds/owl", "cat"],
        "val": ["dog"],
        "test": ["fox"],
    }


def test_a_class_in_two_splits_is_refused_by_name(tmp_path: Path) -> None:
    for name in ("train/cat", "train/dog", "test/cat"):
        class_folder(tmp_path / name, 2)
    with pytest.raises(ImportRefused, match=r"class cat: in (train and in test|test and in train)"):
        FolderImporter().read(tmp_path)


def test_classes_outside_the_split_folders_need_another_way_to_split(tmp_path: Path) -> None:
    class_folder(tmp_path / "cat", 2)
    class_folder(tmp_path / "dog", 2)
    with pytest.raises(
        UsageError, match=r"class cat is not in a folder train, val or test; give .*lists of classes"
    ):
        FolderImporter().read(tmp_path)


def test_lists_choose_classes_from_wherever_their_images_are(tmp_path: Path) -> None:
    for name in ("train/cat", "test/cat", "train/dog", "train/unlisted"):
        class_folder(tmp_path / "set" / name, 2)
    write(tmp_path / "train.txt", b"cat\n\n")
    write(tmp_path / "test.txt", b"dog\n")
    listing = FolderImporter(split_lists=tmp_path).read(tmp_path / "set")
    assert grouped(listing) == {"train": ["cat"], "val": [], "test": ["dog"]}
    assert len(listing.classes[0].images) == 4


def test_listed_classes_that_are_missing_or_listed_twice_are_all_named(tmp_path: Path) -> None:
    class_folder(tmp_path / "set/cat", 2)
    class_folder(tmp_path / "set/dog", 2)
    write(tmp_path / "train.txt", b"cat\nyeti\n")
    write(tmp_path / "test.txt", b"cat\n")
    with pytest.raises(ImportRefused) as refused:
        FolderImporter(split_lists=tmp_path).read(tmp_path / "set")
    yeti, cat = refused.value.problems
    assert yeti == f"class yeti: listed in {tmp_path}/train.txt but there is no such folder"
    assert cat == f"class cat: listed in {tmp_path}/test.txt and in {tmp_path}/train.txt"


def test_lists_that_are_not_there_are_named(tmp_path: Path) -> None:
    class_folder(tmp_path / "set/cat", 2)
    with pytest.raises(UsageError, match=r"train\.txt: cannot be read"):
        FolderImporter(split_lists=tmp_path).read(tmp_path / "set")


def test_proportions_give_each_class_to_one_split_the_same_for_the_same_seed(tmp_path: Path) -> None:
    names = [f"class{i:02d}" for i in range(25)]
    for name in names:
        class_folder(tmp_path / name, 2)
    drawn = grouped(FolderImporter(proportions=(0.64, 0.16, 0.20)).read(tmp_path))
    assert [len(drawn[s]) for s in SPLITS] == [16, 4, 5]
    assert sorted(n for names in drawn.values() for n in names) == names
    assert grouped(FolderImporter(proportions=(0.64, 0.16, 0.20)).read(tmp_path)) == drawn
    assert grouped(FolderImporter(proportions=(0.64, 0.16, 0.20), seed=1).read(tmp_path)) != drawn


@pytest.mark.parametrize("proportions", [(0.5, 0.5), (0.5, 0.2, 0.2), (1.2, -0.1, -0.1), (0.0, 0.5, 0.5)])
def test_proportions_that_are_none_are_refused(proportions: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="proportions: must be three numbers"):
        FolderImporter(proportions=proportions)


def test_only_one_way_to_split_may_be_given(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="split_lists: cannot be combined with proportions"):
        FolderImporter(split_lists=tmp_path, proportions=(0.5, 0.25, 0.25))


def test_classes_with_too_few_images_are_all_named(tmp_path: Path) -> None:
    for name, count in (("train/cat", 3), ("train/dog", 1), ("test/fox", 2)):
        class_folder(tmp_path / name, count)
    with pytest.raises(ImportRefused) as refused:
        FolderImporter(min_images=3).read(tmp_path)
    assert refused.value.problems == (
        "class dog: 1 image found, at least 3 expected",
        "class fox: 2 images found, at least 3 expected",
    )
    with pytest.raises(ImportRefused, match="class dog: 1 image found, at least 2 expected"):
        FolderImporter().read(tmp_path)


def test_an_image_that_lies_in_no_class_folder_is_named(tmp_path: Path) -> None:
    class_folder(tmp_path / "train/cat", 2)
    write(tmp_path / "train/lost.png", encoded(1))
    write(tmp_path / "README.md", b"passed over")
    with pytest.raises(ImportRefused, match=r"train/lost\.png: an image outside of any class folder"):
        FolderImporter().read(tmp_path)


def test_a_class_beside_others_may_be_called_train(tmp_path: Path) -> None:
    for name in ("boat", "train", "test", "car"):
        class_folder(tmp_path / name, 2)
    listing = FolderImporter(proportions=(0.5, 0.25, 0.25)).read(tmp_path)
    assert sorted(each.name for each in listing.classes) == ["boat", "car", "test", "train"]


def test_a_folder_without_training_classes_or_any_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no folders of images"):
        FolderImporter().read(tmp_path)
    class_folder(tmp_path / "test/cat", 2)
    with pytest.raises(UsageError, match="no class is in the training split"):
        FolderImporter().read(tmp_path)
