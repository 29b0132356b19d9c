from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from pathaware.core.errors import UsageError
from pathaware.data.importers import trees
from pathaware.data.importers.folder import FolderImporter
from pathaware.data.importers.source import ImportRefused
from pathaware.data.importing import import_dataset
from pathaware.data.pixels import ImageFormat
from tests.data.image_trees import class_folder, encoded, zipped

IMPORTER = FolderImporter(ImageFormat(8, 3), min_images=1)
OUTSIDE = ["../outside.png", "train/../../outside.png", "/outside.png", "..\\outside.png", "C:/outside.png"]


def tarred(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return path


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("outside", OUTSIDE)
def test_an_archive_with_a_member_outside_itself_is_refused_by_name(
    tmp_path: Path, pack, outside: str
) -> None:
    archive = pack(tmp_path / "evil", {"train/a/1.png": encoded(1), outside: encoded(2)})
    with pytest.raises(UsageError, match=r"evil: refused, its member '.*outside\.png'"):
        import_dataset("mine", IMPORTER, archive, tmp_path / "data")
    assert [p.name for p in tmp_path.iterdir()] == ["evil"]


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_is_read_in_place_even_inside_a_wrapping_folder(tmp_path: Path, pack) -> None:
    members = {
        "set/train/a/1.png": encoded(1),
        "set/train/b/2.png": encoded(2),
        "set/test/c/3.png": encoded(3),
        "set/README.md": b"",
        "set/train/a/.hidden": b"",
        "__MACOSX/set/train/a/1.png": b"",
    }
    store = import_dataset("mine", IMPORTER, pack(tmp_path / "set.archive", members), tmp_path / "data")
    assert [c.name for c in store.manifest.classes] == ["a", "b", "c"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "set.archive"]


def test_a_member_that_unpacks_to_too_much_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_FILE", 5000)
    archive = zipped(tmp_path / "set.zip", {"train/a/1.png": encoded(1), "train/a/2.png": bytes(10_000)})
    with pytest.raises(ImportRefused, match=r"set\.zip:train/a/2\.png: more than the 5,000 bytes allowed"):
        import_dataset("mine", IMPORTER, archive, tmp_path / "data")


def test_links_in_a_tar_are_not_followed(tmp_path: Path) -> None:
    class_folder(tmp_path / "elsewhere", 1)
    with tarfile.open(tarred(tmp_path / "set.tar", {"train/a/1.png": encoded(1)}), "a") as archive:
        link = tarfile.TarInfo("train/a/2.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "elsewhere/0000.png")
        archive.addfile(link)
    assert len(import_dataset("mine", IMPORTER, tmp_path / "set.tar", tmp_path / "data")) == 1
