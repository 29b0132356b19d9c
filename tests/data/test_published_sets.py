from __future__ import annotations

import csv
import pickle
import tarfile
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest

from pathaware.core.errors import UsageError
from pathaware.data.importers.cifar import Cifar100
from pathaware.data.importers.mini_imagenet import MiniImageNet
from pathaware.data.importers.omniglot import Omniglot
from pathaware.data.importers.source import ImportRefused, class_lists
from pathaware.data.importers.tiered_imagenet import TieredImageNet
from pathaware.data.importing import import_dataset
from pathaware.data.store import SPLITS, ImageStore
from tests.data.image_trees import (
    Runs,
    class_folder,
    encoded,
    official_folders,
    pixels,
    python2_pickle,
    write,
    zipped,
)


def sizes(store: ImageStore) -> list[int]:
    return [len(store.split(split)) for split in SPLITS]


# --- miniImageNet


def test_mini_imagenet_class_folders_are_merged_and_regrouped_by_the_published_lists(tmp_path: Path) -> None:
    # This copy has every class in train/ and in val/, which is not the split of few-shot learning.
    official_folders(tmp_path / "mini", "mini_imagenet", 1, under="train")
    official_folders(tmp_path / "mini", "mini_imagenet", 2, under="val")
    write(tmp_path / "mini/README.md", b"not an image")
    store = import_dataset("m", MiniImageNet(images_per_class=3), tmp_path / "mini", tmp_path / "data")
    assert (sizes(store), len(store), store.shape) == ([64, 16, 20], 300, (3, 84, 84))
    assert store.split("val").names == tuple(class_lists("mini_imagenet")["val"])


def test_mini_imagenet_is_read_from_csv_lists(tmp_path: Path) -> None:
    root = tmp_path / "mini"
    seed = 0
    for split, names in class_lists("mini_imagenet").items():
        table = StringIO()
        rows = csv.writer(table)
        rows.writerow(["filename", "label"])
        for name in names:
            for _ in range(2):
                write(root / "images" / f"{name}{seed:08d}.jpg", encoded(seed, kind="JPEG"))
                rows.writerow([f"{name}{seed:08d}.jpg", name])
                seed += 1
        write(root / f"{split}.csv", table.getvalue().encode())
    store = import_dataset("m", MiniImageNet(images_per_class=2), root, tmp_path / "data")
    assert (sizes(store), len(store)) == ([64, 16, 20], 200)
    (root / "images/n0153282900000001.jpg").unlink()
    with pytest.raises(UsageError, match=r"n0153282900000001\.jpg: listed in .*train\.csv but missing"):
        MiniImageNet(images_per_class=2).read(root)


def mini_caches(root: Path, protocol: int = 2) -> Path:
    for split, names in class_lists("mini_imagenet").items():
        images = np.stack([pixels(seed, 84) for seed in range(2)] * len(names))
        indices = {name: [2 * i, 2 * i + 1] for i, name in enumerate(names)}
        cache = {"image_data": images, "class_dict": indices}
        write(root / f"mini-imagenet-cache-{split}.pkl", pickle.dumps(cache, protocol))
    return root


def test_mini_imagenet_is_read_from_the_pickle_caches(tmp_path: Path) -> None:
    store = import_dataset(
        "m", MiniImageNet(images_per_class=2), mini_caches(tmp_path / "c"), tmp_path / "data"
    )
    assert (sizes(store), len(store)) == ([64, 16, 20], 200)
    np.testing.assert_array_equal(store.images[1].numpy(), pixels(1, 84).transpose(2, 0, 1))


def test_a_cache_that_would_run_a_command_is_refused_by_name_and_runs_nothing(tmp_path: Path) -> None:
    root, proof = mini_caches(tmp_path / "c"), tmp_path / "it ran"
    write(root / "mini-imagenet-cache-val.pkl", pickle.dumps({"image_data": Runs(proof)}))
    with pytest.raises(UsageError, match=r"mini-imagenet-cache-val\.pkl: refused, .*\.system"):
        import_dataset("m", MiniImageNet(images_per_class=2), root, tmp_path / "data")
    assert not proof.exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([1, 2], "contains a list, not a dict"),
        ({"image_data": np.zeros((2, 84, 84, 3), np.float32)}, "image_data must be a uint8 array"),
        ({"image_data": np.zeros((2, 84, 84, 3), np.uint8)}, "class_dict must give"),
        (
            {"image_data": np.zeros((2, 84, 84, 3), np.uint8), "class_dict": {"a": [2]}},
            "class a has no image 2",
        ),
    ],
)
def test_a_cache_of_another_form_is_refused_by_name(tmp_path: Path, document: object, message: str) -> None:
    write(tmp_path / "mini-imagenet-cache-train.pkl", pickle.dumps(document))
    with pytest.raises(UsageError, match=rf"cache-train\.pkl: {message}"):
        MiniImageNet().read(tmp_path)


def test_missing_and_short_classes_are_all_named(tmp_path: Path) -> None:
    official_folders(tmp_path, "mini_imagenet", 2)
    (tmp_path / "n01532829/0001.png").unlink()
    for name in ("0000.png", "0001.png"):
        (tmp_path / "n02110063" / name).unlink()
    with pytest.raises(ImportRefused) as refused:
        MiniImageNet(images_per_class=2).read(tmp_path)
    assert refused.value.problems == (
        "class n01532829: 1 image found, 2 expected",
        "class n02110063: 0 images found, 2 expected",
    )


def test_a_class_found_twice_over_is_refused(tmp_path: Path) -> None:
    official_folders(tmp_path, "mini_imagenet", 1)
    class_folder(tmp_path / "copy/n01532829", 1)
    with pytest.raises(ImportRefused, match="class n01532829: 2 images found, 1 expected"):
        MiniImageNet(images_per_class=1).read(tmp_path)


@pytest.mark.parametrize(
    "layout",
    [MiniImageNet(), Cifar100("fc100"), TieredImageNet(), Omniglot()],
    ids=lambda x: type(x).__name__,
)
def test_a_folder_without_the_set_says_what_would_be_accepted(tmp_path: Path, layout: MiniImageNet) -> None:
    class_folder(tmp_path / "cats", 2)
    with pytest.raises(UsageError, match=r"no .* found; (accepted are|it must contain)"):
        layout.read(tmp_path)
    with pytest.raises(UsageError, match="no such file or folder"):
        layout.read(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"must be a folder, a \.zip, a \.tar or a \.tar\.gz"):
        layout.read(tmp_path / "cats/0000.png")


# --- CIFAR-FS and FC100


@pytest.mark.parametrize(("lists", "expected"), [("cifar_fs", [64, 16, 20]), ("fc100", [60, 20, 20])])
def test_cifar_class_folders_of_train_and_test_are_merged(
    tmp_path: Path, lists: str, expected: list[int]
) -> None:
    official_folders(tmp_path / "c", lists, 2, under="train")
    official_folders(tmp_path / "c", lists, 1, under="test")
    store = import_dataset("c", Cifar100(lists, images_per_class=3), tmp_path / "c", tmp_path / "data")  # type: ignore[arg-type]
    assert (sizes(store), len(store), store.shape) == (expected, 300, (3, 32, 32))


def cifar_python() -> dict[str, bytes]:
    names = sorted(n for names in class_lists("cifar_fs").values() for n in names)
    image = np.arange(3072).astype(np.uint8)
    files = {}
    for part, each in (("train", 2), ("test", 1)):
        data = np.stack([np.roll(image, label) for label in range(100)] * each)
        files[part] = python2_pickle({b"data": data, b"fine_labels": list(range(100)) * each})
    return {**files, "meta": python2_pickle({b"fine_label_names": [n.encode() for n in names]})}


@pytest.mark.parametrize("packed", [False, True])
def test_cifar_is_read_from_the_original_python_version(tmp_path: Path, packed: bool) -> None:
    source = tmp_path / ("cifar-100-python.tar.gz" if packed else "source")
    if packed:
        with tarfile.open(source, "w:gz") as tar:
            for name, content in cifar_python().items():
                member = tarfile.TarInfo(f"cifar-100-python/{name}")
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
    else:
        for name, content in cifar_python().items():
            write(source / "cifar-100-python" / name, content)
    store = import_dataset("c", Cifar100("cifar_fs", images_per_class=3), source, tmp_path / "data")
    assert (sizes(store), len(store)) == ([64, 16, 20], 300)
    # Class 0, apple, is the first of the training list; pixels keep their planes.
    assert store.split("train").names[0] == "apple"
    np.testing.assert_array_equal(store.images[0].numpy().ravel(), np.arange(3072).astype(np.uint8))


def test_a_cifar_file_that_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path / "meta", cifar_python()["meta"])
    with pytest.raises(
        UsageError, match=r"train: missing; cifar-100-python consists of meta, train and test"
    ):
        Cifar100("fc100").read(tmp_path)


# --- tieredImageNet


def test_tiered_imagenet_is_read_from_class_folders(tmp_path: Path) -> None:
    official_folders(tmp_path / "t", "tiered_imagenet", 1)
    layout = TieredImageNet(min_images=1, images_per_split=(351, 97, 160))
    store = import_dataset("t", layout, tmp_path / "t", tmp_path / "data")
    assert (sizes(store), len(store), store.shape) == ([351, 97, 160], 608, (3, 84, 84))


def tiered_pickles(root: Path, train: int = 351) -> Path:
    png = np.frombuffer(encoded(0), np.uint8)
    for split, count in zip(SPLITS, (train, 97, 160), strict=True):
        labels = {"label_specific": np.arange(count), "catnames_specific": ["crane"] * count}
        write(root / f"{split}_images_png.pkl", pickle.dumps([png[:, None]] * count))
        write(root / f"{split}_labels.pkl", pickle.dumps(labels))
    return root


def test_tiered_imagenet_is_read_from_pickles_of_png_images(tmp_path: Path) -> None:
    layout = TieredImageNet(min_images=1, images_per_split=None)
    store = import_dataset("t", layout, tiered_pickles(tmp_path / "t"), tmp_path / "data")
    assert (sizes(store), len(store)) == ([351, 97, 160], 608)
    assert store.split("val").names[3] == "val/003 crane"


def test_tiered_imagenet_of_another_size_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(ImportRefused) as refused:
        TieredImageNet(min_images=1).read(tiered_pickles(tmp_path, train=350))
    assert refused.value.problems[:2] == (
        "train: 350 classes found, 351 expected",
        "train: 350 images found, 448,695 expected",
    )


# --- Omniglot


@pytest.fixture(scope="module")
def characters() -> dict[str, dict[str, bytes]]:
    """Every character once, by the part of Omniglot it is in: ink 0 on paper 255, a bar along the top."""
    from PIL import Image

    drawing = np.full((105, 105), 255, np.uint8)
    drawing[:20] = 0
    file = BytesIO()
    Image.fromarray(drawing).convert("1").save(file, "PNG")
    parts: dict[str, dict[str, bytes]] = {"images_background": {}, "images_evaluation": {}}
    for split, names in class_lists("omniglot").items():
        part = "images_evaluation" if split == "test" else "images_background"
        for name in names:
            parts[part][f"{part}/{name}/0001_01.png"] = file.getvalue()
    return parts


def test_omniglot_is_read_from_its_zips_with_bright_ink(
    tmp_path: Path, characters: dict[str, dict[str, bytes]]
) -> None:
    for part, members in characters.items():
        zipped(tmp_path / f"{part}.zip", members)
        zipped(tmp_path / f"{part}_small1.zip", members)  # samples of the same characters: not to be counted
    store = import_dataset("o", Omniglot(images_per_class=1), tmp_path, tmp_path / "data")
    assert (sizes(store), len(store), store.shape) == ([1028, 172, 423], 1623, (1, 28, 28))
    assert store.images[0, 0, 0].tolist() == [255] * 28
    assert store.images[0, 0, 20].tolist() == [0] * 28
    assert not store.manifest.mirror


def test_omniglot_folders_give_four_classes_a_character_when_rotated(
    tmp_path: Path, characters: dict[str, dict[str, bytes]]
) -> None:
    for part, members in characters.items():
        for name, content in members.items():
            write(tmp_path / "o" / name, content)
        zipped(tmp_path / "o" / f"{part}.zip", members)  # the folder is there: the zip is not read as well
    store = import_dataset(
        "o", Omniglot(images_per_class=1, rotations=True), tmp_path / "o", tmp_path / "data"
    )
    assert sizes(store) == [4112, 688, 1692]
    names = store.split("train").names[:4]
    assert [n.rpartition("/")[2] for n in names] == ["rot000", "rot090", "rot180", "rot270"]
    bright = [store.images[i, 0].float() for i in range(4)]
    edges = [(b[0].mean(), b[:, 0].mean(), b[-1].mean(), b[:, -1].mean()) for b in bright]
    assert [int(np.argmax(e)) for e in edges] == [0, 1, 2, 3]  # top, left, bottom, right: counter-clockwise
