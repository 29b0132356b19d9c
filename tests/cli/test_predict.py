"""`pathaware predict`, as it is called."""

from __future__ import annotations

import csv
import io
import json
import os
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from pathaware.cli import main
from pathaware.data import contact_sheet
from pathaware.inference import class_folders as folders
from pathaware.inference.trained_model import SUPPORT
from pathaware.training.checksummed import write_checksummed
from tests.inference.models import PHOTO, class_folders, image, save_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, labelled pictures and new ones."""
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "run", inputs=PHOTO)
    class_folders(tmp_path / "pets", {"bee": 2, "Ærfugl": 1, "cat": 3})
    class_folders(tmp_path / "new", {"cat": 2, "bee": 1}, first=50)
    return tmp_path


@pytest.fixture
def predict(here, capsys):
    def call(*arguments: object, code: int = 0) -> tuple[str, str]:
        given = {"--support": "pets", "--images": "new"}
        given.update(zip(arguments[::2], arguments[1::2], strict=False))
        flags = arguments[-1:] if len(arguments) % 2 else ()
        line = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
        with pytest.raises(SystemExit) as left:
            main(["predict", "run", *line, *map(str, flags)])
        out, err = capsys.readouterr()
        assert (left.value.code or 0) == code, err
        return out, err

    return call


def test_a_table_is_printed_by_default(predict):
    out, err = predict()
    lines = out.splitlines()
    assert lines[0] == "| picture | label | probability | runner-up |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        f"| new/{name}" for name in ("bee/0.png", "cat/0.png", "cat/1.png")
    ]
    assert err == ""


def test_csv_and_json_agree_and_stand_alone_on_stdout(predict):
    rows = list(csv.DictReader(io.StringIO(predict("--format", "csv")[0])))
    found = json.loads(predict("--format", "json")[0])
    assert list(rows[0]) == ["picture", "label", "probability", "bee", "cat", "Ærfugl"]
    for row, each in zip(rows, found, strict=True):
        assert list(each) == ["picture", "label", "probabilities"]
        assert (row["picture"], row["label"]) == (each["picture"], each["label"])
        assert {name: float(row[name]) for name in ("bee", "cat", "Ærfugl")} == each["probabilities"]
        assert float(row["probability"]) == max(each["probabilities"].values())
        assert abs(sum(each["probabilities"].values()) - 1) < 1e-5


def test_the_name_of_a_file_says_its_form_and_nothing_is_written_over(predict, here):
    for name, start in (("a.csv", "picture,label"), ("a.json", "["), ("a.md", "| picture")):
        out, err = predict("--out", name)
        assert (out, err) == ("", "")
        assert (here / name).read_text(encoding="utf-8").startswith(start)
    _, err = predict("--out", "a.csv", code=2)
    assert err == "error: --out: a.csv exists; add --replace to overwrite it\n"
    (here / "a.csv").write_text("old")
    predict("--out", "a.csv", "--replace")
    assert (here / "a.csv").read_text(encoding="utf-8").startswith("picture")


def test_a_format_that_is_given_goes_to_a_file_of_any_name(predict, here):
    predict("--out", "a.dat", "--format", "csv")
    assert (here / "a.dat").read_text(encoding="utf-8").startswith("picture,label")
    predict("--out", "plain")
    assert (here / "plain").read_text(encoding="utf-8").startswith("| picture")


def test_columns_of_a_csv_have_different_names(predict, here):
    class_folders(here / "odd", {"label": 1, "label (class)": 1, "picture": 1, "for": 1})
    out, _ = predict("--support", "odd", "--format", "csv")
    columns = ["for", "label (class)", "label (class) (class)", "picture (class)"]
    assert out.splitlines()[0].split(",")[3:] == columns


def test_class_folders_in_place_of_a_classifier_are_answered_with_the_commands_for_them(here, capsys):
    for command in (["predict"], ["suggest"], ["export", "--to", "torch"], ["serve"]):
        rest = ["--images", "new"] if command[0] in ("predict", "suggest") else []
        with pytest.raises(SystemExit):
            main([*command, "pets", *rest])
        err = capsys.readouterr().err
        assert err.startswith("error: RUN: pets holds labelled pictures and is not a classifier; ")
        assert "pathaware learn pets" in err
        assert "pathaware predict photos --support pets --images PICTURES" in err


def test_labels_that_no_font_has_are_named_once(predict, here, monkeypatch):
    class_folders(here / "dogs", {"犬": 1, "狼犬": 1, "dog": 1})
    monkeypatch.setattr(contact_sheet, "_installed", list)
    contact_sheet._font_file.cache_clear()
    _, err = predict("--support", "dogs", "--show", "sheet.png")
    warning = "warning: no installed font has 犬狼; the image shows boxes in their place\n"
    assert err.count(warning) == 1
    contact_sheet._font_file.cache_clear()


def test_archives_and_single_pictures_are_read(predict, here):
    for name in ("pets", "new"):
        with zipfile.ZipFile(f"{name}.zip", "w") as archive:
            for path in sorted((here / name).rglob("*.png")):
                archive.write(path, path.relative_to(here / name))
    packed = json.loads(predict("--support", "pets.zip", "--images", "new.zip", "--format", "json")[0])
    plain = json.loads(predict("--format", "json")[0])
    assert [p["picture"] for p in packed] == [p["picture"].replace("new/", "new.zip:") for p in plain]
    assert [p["probabilities"] for p in packed] == [p["probabilities"] for p in plain]
    (single,) = json.loads(predict("--images", "new/cat/1.png", "--format", "json")[0])
    assert single == plain[2]


def test_what_cannot_be_read_is_named_and_the_others_are_answered(predict, here):
    (here / "new/bee/0.png").write_bytes(b"broken")
    out, err = predict("--format", "csv", code=1)
    assert len(out.splitlines()) == 3
    assert err == "new/bee/0.png: not an image in a known format\n"
    for path in here.glob("new/*/*.png"):
        path.write_bytes(b"broken")
    out, err = predict("--format", "json", "--score", "--out", "none.json", code=1)
    assert (out, (here / "none.json").exists()) == ("", False)
    assert len(err.splitlines()) == 4  # three files, and the error
    assert err.splitlines()[-1] == "error: --images: no picture in new can be read"
    (here / "note.jpg").write_text("no picture")
    out, err = predict("--images", "note.jpg", code=1)
    assert (out, err) == ("", "error: --images: note.jpg: not an image in a known format\n")


def test_all_problems_of_the_support_are_named(predict, here):
    (here / "pets/bee/0.png").write_bytes(b"broken")
    (here / "pets/cat/2.png").write_bytes(b"")
    out, err = predict(code=2)
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == ["pets/bee/0.png", "pets/cat/2.png", "error"]
    assert err.splitlines()[-1].endswith("(and 1 more)")


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        ("--support", "nowhere", "--support: nowhere: no such file or folder"),
        ("--images", "nowhere", "--images: nowhere: no such file or folder"),
        (
            "--support",
            "new/cat",
            "--support: new/cat has pictures but no class folders; put the pictures of each class into a "
            "folder that has its name",
        ),
        ("--format", "xml", "--format: must be one of table, csv, json, not xml"),
        ("--out", "no/where.csv", "--out: no/where.csv cannot be written (there is no folder no)"),
        ("--show", "no/where.png", "--show: no/where.png cannot be written (there is no folder no)"),
        ("--out", "a.xlsx", "--out: a.xlsx must end in one of .csv, .json, .md, .txt; or choose a --format"),
    ],
)
def test_what_cannot_be_used_is_one_line(predict, option, value, line):
    out, err = predict(option, value, code=2)
    assert out == ""
    assert err.splitlines()[-1] == f"error: {line}"


def test_a_csv_has_all_classes_so_top_is_refused(predict):
    assert "--top: does not apply to csv" in predict("--format", "csv", "--top", "1", code=2)[1]
    assert "| probability |\n" in predict("--top", "1")[0]
    assert "--top" in predict("--top", "0", code=2)[1]


def test_the_score_goes_to_stderr(predict):
    out, err = predict("--format", "json", "--score")
    labels = [(p["picture"].split("/")[1], p["label"]) for p in json.loads(out)]
    right = sum(truth == label for truth, label in labels)
    assert err.splitlines()[0] == f"accuracy {right / 3:.4f}, {right} of 3 right"
    assert [line.split(":")[0] for line in err.splitlines()[1:]] == ["bee", "cat"]


def test_a_sheet_is_drawn_beside_the_answers(predict, here):
    out, _ = predict("--show", "sheet.png", "--format", "csv")
    assert out.startswith("picture,")
    with Image.open(here / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        assert sheet.width > 1000


def test_thirty_classes_of_uneven_size_and_names_of_all_kinds(predict, here):
    names = {f"класс {i}, “{chr(0x4E00 + i)}”": 1 + i % 3 for i in range(30)}
    class_folders(here / "many", names)
    image(99).save(here / "=cmd|'x'!A1, ü.png")
    out, _ = predict("--support", "many", "--images", "=cmd|'x'!A1, ü.png", "--format", "csv")
    header, row = csv.reader(io.StringIO(out))
    assert header[3:] == sorted(names)
    assert row[0] == "=cmd|'x'!A1, ü.png"
    assert len(row) == 33


def test_a_single_problem_of_the_support_is_told_once(predict, here):
    (here / "pets/bee/0.png").write_bytes(b"broken")
    _, err = predict(code=2)
    assert err == "error: --support: pets: pets/bee/0.png: not an image in a known format\n"


def tree(folder: Path) -> dict[str, bytes]:
    """The files in a folder by their names."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("source", ["new", "new.zip", "new/cat/1.png"])
def test_pictures_are_copied_into_a_folder_per_label(predict, here, source):
    """Those of sub-folders as well; of two with the same name the second gets a number."""
    os.utime(here / "new/cat/1.png", (1e9, 1e9))
    before = tree(here / "new")
    with zipfile.ZipFile("new.zip", "w") as archive:
        for name in before:
            archive.write(here / "new" / name, name)
    out, err = predict("--images", source, "--sort", "sorted", "--format", "json")
    rows = json.loads(out)
    assert list(rows[0]) == ["picture", "label", "probabilities", "copy"]
    assert len({row["copy"] for row in rows}) == len(rows) == (1 if "cat" in source else 3)
    assert tree(here / "new") == before
    content = {"new/" + name: value for name, value in before.items()}
    for row in rows:
        copy, name = Path(row["copy"]), row["picture"].replace("new.zip:", "new/")
        assert copy.parent == Path("sorted") / row["label"]
        assert copy.name in (Path(name).name, f"{Path(name).stem}-2.png", f"{Path(name).stem}-3.png")
        assert copy.read_bytes() == content[name]
        assert source == "new.zip" or copy.stat().st_mtime == Path(name).stat().st_mtime
    assert len(tree(here / "sorted")) == len(rows)
    counts = {row["label"]: sum(each["label"] == row["label"] for each in rows) for row in rows}
    (line,) = err.splitlines()
    start, _, parts = line.partition(": ")
    assert start == f"copied {len(rows)} picture{'s' if rows[1:] else ''} into sorted"
    assert sorted(parts.split(", ")) == sorted(f"{label} {count}" for label, count in counts.items())


def test_the_file_of_labels_says_where_each_picture_went(predict, here):
    class_folders(here / "odd", {"copy": 1, "cat": 1})
    out, err = predict("--support", "odd", "--sort", "sorted", "--out", "labels.csv", "--why")
    assert out == ""
    assert err.splitlines()[-1].startswith("copied 3 pictures into sorted: ")
    with (here / "labels.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[3:] == ["cat", "copy (class)", "for", "against", "copy"]
    assert sorted(row["copy"] for row in rows) == sorted(f"sorted/{name}" for name in tree(here / "sorted"))


def test_what_cannot_be_read_is_named_and_not_copied(predict, here):
    (here / "new/bee/0.png").write_bytes(b"broken")
    _, err = predict("--sort", "sorted", code=1)
    first, last = err.splitlines()
    assert first == "new/bee/0.png: not an image in a known format"
    assert last.startswith("copied 2 pictures into sorted: ")
    assert len(tree(here / "sorted")) == 2


def test_an_empty_folder_is_filled_also_if_it_is_the_current_one(predict, here, monkeypatch):
    (here / "empty").mkdir()
    (here / "empty/.DS_Store").write_bytes(b"Bud1")
    monkeypatch.chdir(here / "empty")
    with pytest.raises(SystemExit) as left:
        main(["predict", "../run", "--support", "../pets", "--images", "../new", "--sort", "."])
    assert not left.value.code
    assert len([name for name in tree(here / "empty") if name.endswith(".png")]) == 3
    assert not [path for path in (here / "empty").iterdir() if path.name.startswith(".pathaware")]


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("full", "full is not empty; name a new folder"),
        ("file", "file is a file; name a new folder"),
        ("no/where", "no/where cannot be written (there is no folder no)"),
        (
            "new/sorted",
            "new/sorted is in the folder of --images, where the copies would be read the next time; name a "
            "folder outside of it",
        ),
        (
            "pets",
            "pets is in the folder of --support, where the copies would be read the next time; name a folder "
            "outside of it",
        ),
        ("labels.csv", "labels.csv is also the file of --out"),
    ],
)
def test_a_folder_that_cannot_take_the_copies_is_refused_before_the_work(predict, here, value, line):
    """`--replace` does not help: the folder may hold the only copy of a photograph."""
    (here / "full").mkdir()
    (here / "full/precious.jpg").write_bytes(b"precious")
    (here / "file").touch()
    before = tree(here)
    out, err = predict("--sort", value, "--out", "labels.csv", "--replace", code=2)
    assert (out, err) == ("", f"error: --sort: {line}\n")
    assert tree(here) == before


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_copy_leaves_nothing(predict, here, monkeypatch, existing, error):
    copy, copied = folders.new_copy, []

    def full(target, *picture):
        if copied:
            target.write_bytes(b"hal")
            raise error
        copied.append(target)
        copy(target, *picture)

    monkeypatch.setattr(folders, "new_copy", full)
    if existing:
        (here / "sorted").mkdir()
    before = set(here.rglob("*"))
    _, err = predict("--sort", "sorted", "--out", "labels.csv", code=2 if isinstance(error, OSError) else 130)
    if isinstance(error, OSError):
        assert err == "error: --sort: sorted cannot be written (No space left on device)\n"
    assert set(here.rglob("*")) == before
    assert len(copied) == 1


@pytest.mark.parametrize("name", ["../outside", "..", "/tmp/outside", "a/b", ".hidden", "", "a\0b", "a\\b"])
def test_a_classifier_of_a_stranger_cannot_name_folders_elsewhere(predict, here, name):
    """Folders and archives have no such classes, but the file of a classifier can say anything."""
    tensors = {"pixels": torch.zeros(2, 3, 20, 20, dtype=torch.uint8), "labels": torch.tensor([0, 1])}
    write_checksummed(here / "run" / SUPPORT, tensors, {"classes": [name, "cat"], "names": ["a", "b"]})
    before = set(here.rglob("*"))
    _, err = predict("--support", None, "--sort", "sorted", code=2)
    assert err.startswith("error: --sort: ")
    assert "cannot be the name of a folder" in err
    assert set(here.rglob("*")) == before
