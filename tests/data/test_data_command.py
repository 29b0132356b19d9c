from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from pathaware.cli.data import app, shown_progress
from pathaware.cli.train import app as train_app
from pathaware.core.errors import UsageError
from pathaware.data.catalogue import open_store
from pathaware.data.episodes import USUAL, ImageEpisodes
from pathaware.data.store import SPLITS
from tests.data.image_trees import class_folder, encoded, write


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number, name in enumerate(["train/cat", "train/dog", "val/owl", "test/fox", "test/elk"]):
        class_folder(tmp_path / "source" / name, 4, first=10 * number)
    return tmp_path / "source"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def refusal(*arguments: object) -> str:
    """Return the text of the UsageError, which `main` prints with exit code 2."""
    error = run(*arguments).exception
    assert isinstance(error, UsageError)
    return str(error)


def test_import_list_and_show_follow_one_another(data: Path, source: Path, tmp_path: Path) -> None:
    done = run("import", "pets", "--from", source, "--size", 16)
    assert done.exit_code == 0, done.output
    assert "2/1/2 classes" in done.output
    assert "20 of 20 images" in done.output  # not a terminal: plain lines
    listed = run("list").output
    assert str(data / "pets") in listed
    assert "20 images  16×16×3" in listed
    assert "glyphs           built in" in listed
    out = tmp_path / "episode.png"
    shown = run("show", "pets", "--ways", 2, "--shots", 1, "--queries", 2, "--out", out)
    assert shown.output.strip() == str(out)
    with Image.open(out) as sheet:
        assert sheet.width > 400


def test_the_proposed_training_fits_the_store_and_every_store_is_shown(data: Path, tmp_path: Path) -> None:
    def imported(name: str, classes: int, count: int, proportions: str = "0.6,0.2,0.2") -> str:
        for number in range(classes):
            class_folder(tmp_path / name / f"c{number}", count, first=100 * number)
        options = ["--proportions", proportions, "--size", 8, "--min-images", 1]
        line = run("import", name, "--from", tmp_path / name, *options).output.splitlines()[-1]
        shown = run("show", name, "--out", tmp_path / f"{name}.png")
        assert shown.exit_code == 0, shown.exception
        return line

    small = imported("five", 5, 8)
    assert small.startswith("too small to train on: 3/1/1 classes")
    assert "25 classes of 6 images" in small
    assert "pathaware learn" in small
    assert imported("single", 3, 1, "1,0,0").startswith("too small to train on: ")
    assert refusal("show", "single", "--ways", 4, "--out", tmp_path / "x.png").startswith("ways 4: ")
    for name, classes, count, options in [
        ("some", 25, 8, " --shots 1 --queries 7"),
        ("few", 10, 20, " --ways 2"),
        ("many", 25, 20, ""),
    ]:
        line = imported(name, classes, count)
        assert line == f"train on it with: pathaware train folder --data {name}{options}"
        hint = CliRunner().invoke(train_app, [name]).exception
        assert str(hint) == f"{name} is an imported data set: pathaware train folder --data {name}{options}"
        numbers = dict(zip(options.split()[::2], map(int, options.split()[1::2]), strict=True))
        size = [
            numbers.get(f"--{key}", usual)
            for key, usual in zip(("ways", "shots", "queries"), USUAL, strict=True)
        ]
        for split in SPLITS:
            ImageEpisodes(open_store(name), split, *size)


def test_a_damaged_store_is_listed_as_such_beside_the_others(data: Path, source: Path) -> None:
    run("import", "good", "--from", source)
    run("import", "bad", "--from", source)
    (data / "bad/images.u8").write_bytes(b"")
    listed = run("list").output
    assert "bad              unusable: " in listed
    assert "good                      2/1/2 classes" in listed


def test_a_grey_import_has_one_channel_and_is_not_mirrored(data: Path, source: Path) -> None:
    run("import", "pets", "--from", source, "--grey")
    store = open_store("pets")
    assert store.shape == (1, 84, 84)
    assert not store.manifest.mirror


def test_proportions_and_lists_are_passed_on(data: Path, source: Path, tmp_path: Path) -> None:
    assert (
        run("import", "drawn", "--from", source, "--proportions", "0.6,0.2,0.2", "--seed", 3).exit_code == 0
    )
    assert "seed 3" in open_store("drawn").manifest.source
    write(tmp_path / "lists/train.txt", b"elk\n")
    run("import", "listed", "--from", source, "--split-lists", tmp_path / "lists", "--layout", "folder")
    assert open_store("listed").split("train").names == ("elk",)


def test_every_problem_is_printed_before_the_one_line_of_the_error(data: Path, source: Path) -> None:
    write(source / "train/cat/a.txt", b"?")
    write(source / "test/fox/cut.jpg", encoded(0, 64, "JPEG")[:-300])
    result = run("import", "pets", "--from", source)
    assert isinstance(result.exception, UsageError)
    assert f"{source}/train/cat/a.txt: not an image in a known format" in result.output
    assert f"{source}/test/fox/cut.jpg: image file is truncated" in result.output
    assert not data.exists()


def test_an_interrupted_import_says_how_to_resume(
    data: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathaware.data.importing.import_dataset", interrupted)
    result = run("import", "pets", "--from", source)
    assert result.exit_code == 130
    assert "run the same command to resume" in result.output


def test_a_picture_that_cannot_be_written_is_named(data: Path, source: Path, tmp_path: Path) -> None:
    run("import", "pets", "--from", source)
    options = ("--ways", 2, "--shots", 1, "--queries", 1)
    assert "out: " in refusal("show", "pets", *options, "--out", tmp_path / "no/such.png")
    assert "out: " in refusal("show", "pets", *options, "--out", tmp_path / "such.xyz")


def test_progress_on_a_terminal_is_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with shown_progress("pets") as progress:
        progress(5, 10, "cat")
    assert "pets · cat" in capsys.readouterr().err


def test_a_single_problem_of_an_import_is_said_once(data: Path, tmp_path: Path) -> None:
    class_folder(tmp_path / "pets/cat", 1)
    class_folder(tmp_path / "pets/dog", 2, first=10)
    refused = run("import", "pets", "--from", tmp_path / "pets", "--proportions", "1,0,0")
    assert "class cat" not in refused.output
    assert str(refused.exception).endswith("class cat: 1 image found, at least 2 expected")


def test_images_that_cannot_be_read_can_be_left_out(data: Path, source: Path) -> None:
    (source / "train/cat/damaged.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut off")
    (source / "test/fox/empty.png").write_bytes(b"")
    (source / "test/fox/phone.heic").write_bytes(b"\0\0\0\x18ftypheic")
    line = ("import", "pets", "--from", source, "--size", 16)
    refused = run(*line)
    assert "--skip-unreadable" in getattr(refused.exception, "message", "")
    assert not (data / "pets").exists()
    done = run(*line, "--skip-unreadable")
    assert done.exit_code == 0, done.output
    for name in ("damaged.jpg", "empty.png", "phone.heic"):
        assert done.output.count(name) == 1
    assert [int(n) for split in SPLITS for n in open_store("pets").split(split).counts] == [4] * 5
    for image in sorted((source / "train/cat").iterdir())[1:]:
        image.write_bytes(b"")
    too_few = refusal(*line, "--skip-unreadable", "--replace")
    assert too_few.endswith("class cat: 1 image can be read, at least 2 expected")
    assert len(open_store("pets").images) == 20  # the import before is still there
    assert "class folders only" in refusal("import", "cifar-fs", "--from", source, "--skip-unreadable")


def test_an_import_that_left_images_out_is_not_resumed_by_one_that_does_not(
    data: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "train/cat/empty.png").write_bytes(b"")
    line = ("import", "pets", "--from", source, "--size", 16)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pathaware.data.importing.PartialStore.publish", interrupted)
        assert run(*line, "--skip-unreadable").exit_code == 130
    assert "empty.png" in refusal(*line)
