from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pathaware.core.errors import UsageError
from pathaware.data import importing
from pathaware.data import pixels as images
from pathaware.data.catalogue import imported_stores, open_store
from pathaware.data.importers.folder import FolderImporter
from pathaware.data.importers.source import ImportRefused
from pathaware.data.importing import PartialStore, import_dataset
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import ImageStore
from tests.data.image_trees import class_folder, encoded, pixels, write

IMPORTER = FolderImporter(ImageFormat(8, 3))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for number, name in enumerate(["train/a", "train/b", "train/c", "val/d", "test/e"]):
        class_folder(root / name, 3, first=10 * number)
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def left_behind(data: Path) -> list[str]:
    return sorted(p.name for p in data.iterdir()) if data.exists() else []


@pytest.fixture(params=[-1.0, 3600.0], ids=["in threads", "one by one"])
def _decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "LONG", request.param)


@pytest.mark.usefixtures("_decoding")
def test_an_import_holds_every_image_of_every_class_in_order(source: Path, data: Path) -> None:
    store = import_dataset("mine", IMPORTER, source, data)
    assert [c.name for c in store.manifest.classes] == ["a", "b", "c", "d", "e"]
    assert left_behind(data) == ["mine"]
    for number, span in enumerate(store.manifest.classes):
        for image in range(3):
            expected = pixels(10 * number + image).transpose(2, 0, 1)
            np.testing.assert_array_equal(store.images[span.start + image].numpy(), expected)
    store.verify()


def test_a_truncated_jpeg_is_named_and_nothing_is_imported(source: Path, data: Path) -> None:
    write(source / "train/b/cut.jpg", encoded(1, 64, "JPEG")[:-400])
    with pytest.raises(ImportRefused, match=r"train/b/cut\.jpg: .*truncated"):
        import_dataset("mine", IMPORTER, source, data)
    assert left_behind(data) == []


@pytest.mark.usefixtures("_decoding")
def test_all_bad_files_are_named_not_only_the_first(source: Path, data: Path) -> None:
    write(source / "train/a/notes.txt", b"not an image")
    write(source / "val/d/empty.png", b"")
    write(source / "test/e/cut.png", encoded(1, 64)[:-100])
    with pytest.raises(ImportRefused, match="and 2 more") as refused:
        import_dataset("mine", IMPORTER, source, data)
    named = [problem.split(": ")[0] for problem in refused.value.problems]
    assert named == [str(source / n) for n in ("train/a/notes.txt", "val/d/empty.png", "test/e/cut.png")]
    assert left_behind(data) == []


def test_hidden_files_and_what_systems_leave_are_passed_over(source: Path, data: Path) -> None:
    for name in ("README.md", "train/a/.DS_Store", "train/a/Thumbs.db", ".git/config", "train/README"):
        write(source / name, b"?")
    assert len(import_dataset("mine", IMPORTER, source, data)) == 15


def test_a_file_that_cannot_be_opened_is_named(source: Path, data: Path) -> None:
    (source / "train/a/gone.png").symlink_to("nowhere.png")
    with pytest.raises(ImportRefused, match=r"gone\.png: cannot be read \(No such file"):
        import_dataset("mine", IMPORTER, source, data)


def test_a_link_that_leads_back_up_is_not_followed_for_ever(source: Path, data: Path) -> None:
    (source / "train/a/loop").symlink_to(source, target_is_directory=True)
    assert len(import_dataset("mine", IMPORTER, source, data)) == 15


def test_an_image_of_absurd_size_is_refused(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 1000)
    write(source / "train/a/huge.png", encoded(1, 40))
    with pytest.raises(ImportRefused, match=r"huge\.png: 40×40 pixels, more than the 1,000 allowed"):
        import_dataset("mine", IMPORTER, source, data)


def test_pillows_own_bomb_warning_is_an_error(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1000)
    write(source / "train/a/huge.png", encoded(1, 40))
    with pytest.raises(ImportRefused, match=r"huge\.png: more than 64,000,000 pixels; scale it down"):
        import_dataset("mine", IMPORTER, source, data)


def interrupt_after(count: int):
    seen: list[str] = []

    def progress(done: int, total: int, name: str) -> None:
        seen.append(name)
        if len(seen) == count:
            raise KeyboardInterrupt

    return progress


def decoded_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The images loaded from here on."""
    loaded: list[str] = []
    load = importing._load

    def counting(image, form):
        loaded.append(image.label)
        return load(image, form)

    monkeypatch.setattr(importing, "_load", counting)
    return loaded


def test_an_interrupted_import_goes_on_where_it_stopped(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = import_dataset("whole", IMPORTER, source, data)
    with pytest.raises(KeyboardInterrupt):
        import_dataset("mine", IMPORTER, source, data, progress=interrupt_after(3))
    assert not (data / "mine").exists()
    loaded = decoded_names(monkeypatch)
    resumed = import_dataset("mine", IMPORTER, source, data)
    assert len(loaded) == 6
    assert resumed.manifest.sha256 == whole.manifest.sha256
    assert resumed.manifest.mean == whole.manifest.mean
    assert left_behind(data) == ["mine", "whole"]


@pytest.mark.parametrize("damage", ["torn line", "changed pixels", "lost pixels"])
def test_what_an_interruption_damaged_is_packed_again(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    whole = import_dataset("whole", IMPORTER, source, data)
    with pytest.raises(KeyboardInterrupt):
        import_dataset("mine", IMPORTER, source, data, progress=interrupt_after(3))
    journal, packed = (
        data / ".mine.pathaware-partial/journal.jsonl",
        data / ".mine.pathaware-partial/images.u8",
    )
    if damage == "torn line":
        journal.write_text(journal.read_text()[:-20])
    elif damage == "lost pixels":
        os.truncate(packed, packed.stat().st_size - 60)
    else:
        content = bytearray(packed.read_bytes())
        content[-1] ^= 255
        packed.write_bytes(content)
    loaded = decoded_names(monkeypatch)
    assert import_dataset("mine", IMPORTER, source, data).manifest.sha256 == whole.manifest.sha256
    assert len(loaded) == 9


def test_a_source_that_changed_since_the_interruption_is_packed_from_the_start(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_dataset("mine", IMPORTER, source, data, progress=interrupt_after(3))
    write(source / "test/e/new.png", encoded(99))
    loaded = decoded_names(monkeypatch)
    store = import_dataset("mine", IMPORTER, source, data)
    assert (len(store), len(loaded)) == (16, 16)
    store.verify()


@pytest.mark.parametrize("length", [0, 1, 65, 80, -1])
def test_an_import_killed_while_it_wrote_its_journal_resumes(source: Path, data: Path, length: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        import_dataset("mine", IMPORTER, source, data, progress=interrupt_after(3))
    journal = data / ".mine.pathaware-partial" / importing.JOURNAL
    journal.write_bytes(journal.read_bytes()[:length])
    store = import_dataset("mine", IMPORTER, source, data)
    assert [c.name for c in store.manifest.classes] == ["a", "b", "c", "d", "e"]
    store.verify()
    assert left_behind(data) == ["mine"]


@pytest.mark.parametrize("seed", range(6))
def test_an_import_recovers_from_any_journal(source: Path, data: Path, seed: int) -> None:
    whole = import_dataset("whole", IMPORTER, source, data)
    with pytest.raises(KeyboardInterrupt):
        import_dataset("mine", IMPORTER, source, data, progress=interrupt_after(4))
    journal = data / ".mine.pathaware-partial" / importing.JOURNAL
    content = bytearray(journal.read_bytes())
    chance = np.random.default_rng(seed)
    for at in chance.integers(0, len(content), size=1 + seed % 3):
        content[at] = chance.integers(0, 256)
    journal.write_bytes(content)
    store = import_dataset("mine", IMPORTER, source, data)
    assert store.manifest.classes == whole.manifest.classes
    assert (store.manifest.sha256, store.manifest.mean) == (whole.manifest.sha256, whole.manifest.mean)


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_replacement_killed_at_any_moment_leaves_a_data_set(
    source: Path, data: Path, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_dataset("mine", IMPORTER, source, data)
    write(source / "train/a/one_more.png", encoded(99))
    rename, done = os.rename, []

    def killed(*arguments: Path) -> None:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(arguments)
        rename(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(importing.os, "rename", killed)
        if renames < 2:
            with pytest.raises(KeyboardInterrupt):
                import_dataset("mine", IMPORTER, source, data, replace=True)
        else:
            import_dataset("mine", IMPORTER, source, data, replace=True)
    assert [folder.name for folder in imported_stores(data)] == ["mine"]
    open_store("mine", data).verify()
    assert len(open_store("mine", data)) == (15 if renames < 2 else 16)
    assert len(import_dataset("mine", IMPORTER, source, data, replace=True)) == 16
    assert left_behind(data) == ["mine"]


def test_two_imports_of_one_name_do_not_write_into_each_other(source: Path, data: Path) -> None:
    first = PartialStore(data / "mine", IMPORTER.format, "the first")
    with pytest.raises(UsageError, match="another import of mine is under way"):
        import_dataset("mine", IMPORTER, source, data)
    first.discard()
    assert len(import_dataset("mine", IMPORTER, source, data)) == 15


def test_an_imported_set_is_replaced_only_when_asked(source: Path, data: Path) -> None:
    before = import_dataset("mine", IMPORTER, source, data)
    write(source / "train/a/one_more.png", encoded(99))
    with pytest.raises(UsageError, match=r"^replace: is needed to import .* again; it is already imported"):
        import_dataset("mine", IMPORTER, source, data)
    after = import_dataset("mine", IMPORTER, source, data, replace=True)
    assert (len(before), len(after), len(ImageStore.open(data / "mine"))) == (15, 16, 16)
    before.verify()  # whoever has it open keeps the old one
    assert left_behind(data) == ["mine"]


def test_a_data_folder_that_cannot_be_written_is_named(source: Path, data: Path) -> None:
    data.write_text("a file")
    with pytest.raises(UsageError, match=r"data_dir: .*data is a file, not a folder"):
        import_dataset("mine", IMPORTER, source, data)


def test_a_disk_that_fills_up_is_a_plain_line_and_the_import_can_go_on(
    source: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(PartialStore, "add", full)
        with pytest.raises(UsageError, match=r"data: cannot be written \(No space left on device\)"):
            import_dataset("mine", IMPORTER, source, data)
    assert len(import_dataset("mine", IMPORTER, source, data)) == 15


def test_images_are_scaled_to_the_size_of_the_store(source: Path, data: Path) -> None:
    store = import_dataset("mine", FolderImporter(ImageFormat(5, 1)), source, data)
    assert store.shape == (1, 5, 5)
