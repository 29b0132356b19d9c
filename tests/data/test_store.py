from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.data.catalogue import data_dir, store_folder
from pathaware.data.importing import PartialStore, in_memory
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import ImageStore

FORM = ImageFormat(4, 3)


def classes():
    random = np.random.default_rng(0)
    return [
        (name, split, random.integers(0, 256, (count, 3, 4, 4), dtype=np.uint8))
        for name, split, count in [("a", "train", 3), ("b", "train", 2), ("c", "val", 4), ("d/é", "test", 5)]
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    partial = PartialStore(tmp_path / "set", FORM, "fingerprint")
    for c in classes():
        partial.add(*c)
    partial.publish("a test")
    return tmp_path / "set"


def test_a_store_opens_with_the_pixels_and_names_it_was_written_with(folder: Path) -> None:
    store = ImageStore.open(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["images.u8", "store.json"]
    assert torch.equal(store.tensor(), torch.from_numpy(np.concatenate([c[2] for c in classes()])))
    assert store.split("test").names == ("d/é",)
    assert store.split("train").starts.tolist() == [0, 3]
    assert store.split("train").counts.tolist() == [3, 2]
    assert (store.name, len(store), store.shape, store.manifest.source) == ("set", 14, (3, 4, 4), "a test")
    store.verify()


def test_a_store_on_disk_and_one_in_memory_say_the_same(folder: Path) -> None:
    memory = in_memory("set", classes(), FORM, "a test")
    assert memory.manifest == ImageStore.open(folder).manifest
    assert memory.folder is None
    memory.verify()


def test_mean_and_std_are_those_of_the_training_classes(folder: Path) -> None:
    training = np.concatenate([c[2] for c in classes() if c[1] == "train"]) / 255
    manifest = ImageStore.open(folder).manifest
    np.testing.assert_allclose(manifest.mean, training.mean((0, 2, 3)))
    np.testing.assert_allclose(manifest.std, training.std((0, 2, 3)))


def test_blank_images_do_not_divide_by_zero() -> None:
    store = in_memory("blank", [("a", "train", np.zeros((2, 1, 4, 4), np.uint8))], ImageFormat(4, 1), "")
    assert store.manifest.std[0] > 0


def test_writing_to_an_open_store_does_not_reach_its_file(folder: Path) -> None:
    before = (folder / "images.u8").read_bytes()
    ImageStore.open(folder).images.zero_()
    assert (folder / "images.u8").read_bytes() == before


def test_a_pixel_file_of_the_wrong_size_is_refused_by_name(folder: Path) -> None:
    with (folder / "images.u8").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UsageError, match=r"images\.u8: 673 bytes, 672 expected"):
        ImageStore.open(folder)
    (folder / "images.u8").unlink()
    with pytest.raises(UsageError, match=r"images\.u8: 0 bytes"):
        ImageStore.open(folder)


def test_a_changed_byte_is_found_by_its_checksum(folder: Path) -> None:
    content = bytearray((folder / "images.u8").read_bytes())
    content[100] ^= 1
    (folder / "images.u8").write_bytes(content)
    with pytest.raises(UsageError, match="do not match their checksum"):
        ImageStore.open(folder).verify()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 99),
        ("shape", [3, 4]),
        ("shape", [3, 0, 4]),
        ("mean", [0.5]),
        ("std", [0.0, 1.0, 1.0]),
        ("classes", []),
        ("classes", [{"name": "a", "split": "train", "start": 1, "count": 14}]),
        ("classes", [{"name": "a", "split": "extra", "start": 0, "count": 14}]),
        ("classes", [{"name": "a", "split": "train", "start": 0, "count": "14"}]),
    ],
)
def test_a_damaged_description_is_refused_by_name(folder: Path, key: str, value: object) -> None:
    path = folder / "store.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UsageError, match=r"store\.json: .*import the data set again"):
        ImageStore.open(folder)


def test_a_description_that_is_not_json_is_refused_by_name(folder: Path) -> None:
    (folder / "store.json").write_text("{")
    with pytest.raises(UsageError, match=r"store\.json: not a readable store description"):
        ImageStore.open(folder)


def test_an_unknown_split_is_refused_with_the_ones_there_are(folder: Path) -> None:
    with pytest.raises(UsageError, match="train, val, test"):
        ImageStore.open(folder).split("validation")


def test_the_data_folder_follows_argument_then_variable_then_xdg(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("PATHAWARE_DATA", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert data_dir() == Path("/xdg/pathaware")
    monkeypatch.delenv("XDG_DATA_HOME")
    assert data_dir() == Path.home() / ".local/share/pathaware"
    monkeypatch.setenv("PATHAWARE_DATA", "/data")
    assert data_dir() == Path("/data")
    assert data_dir(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["", "../up", ".hidden", "a/b", "-x"])
def test_a_name_that_is_no_plain_folder_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="data set name"):
        store_folder(name)
