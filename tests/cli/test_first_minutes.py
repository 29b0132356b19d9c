"""The first minutes with photographs of one's own: phones' formats, notes beside pictures, a second try."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pathaware.core.errors import UsageError
from pathaware.inference.trained_model import TrainedModel
from tests.fuzz.calling import call, fresh_folder, must_be_sound, quietly

HEIC = b"\0\0\0\x18ftypheic" + bytes(40)
REASON = "a HEIC image, which cannot be read; save it as JPEG or PNG"


def photographs(root: Path = Path("pets"), count: int = 4) -> None:
    """Class folders as people have them: odd sizes, all orientations, transparency, other files."""
    random = np.random.default_rng(0)
    for number, name in enumerate(["Cat", "fish & chips", "Vögel"]):
        folder = root / name
        folder.mkdir(parents=True)
        for k in range(count):
            height, width = random.integers(20, 200, 2)
            image = Image.fromarray(random.integers(0, 80 * (number + 1), (height, width, 3), dtype=np.uint8))
            exif = Image.Exif()
            exif[0x0112] = 1 + (number + 3 * k) % 8
            if k % 2:
                image.putalpha(128)
                image.save(folder / f"pic {k}.PNG")
            else:
                image.save(folder / f"IMG_{k:04d}.{'JPG' if number else 'jfif'}", "JPEG", exif=exif)
        (folder / ".DS_Store").write_bytes(b"Bud1")
        (folder / "._IMG_0001.JPG").write_bytes(b"\0\5\x16\7")
    (root / "notes.txt").write_text("hello")
    (root / "Thumbs.db").write_bytes(b"x")


LEARN = ["learn", "pets", "--model", "glyphs"]


def test_a_folder_of_pictures_may_have_the_name_of_a_model() -> None:
    with fresh_folder():
        photographs(Path("glyphs"))
        assert quietly(["learn", "glyphs", "--model", "glyphs"]).code == 0
        assert quietly(["predict", "glyphs", "--support", "glyphs", "--images", "glyphs"]).code == 0


def test_photographs_are_learned_and_labelled(tmp_path: Path) -> None:
    with fresh_folder():
        photographs()
        assert quietly([*LEARN, "--json"]).code == 0
        labelled = quietly(["predict", "pets-classifier", "--images", "pets", "--format", "json"])
        assert labelled.code == 0
        assert len(json.loads(labelled.out)) == 12
        wanted = quietly(["suggest", "pets-classifier", "--images", "pets", "--json"])  # without --support
        assert (wanted.code, json.loads(wanted.out)["unlabelled"]) == (0, 12)


@pytest.mark.parametrize("name", ["IMG_1.HEIC", "IMG_1.jpg", "IMG_1.avif"])
def test_photographs_that_cannot_be_read_are_named_and_never_left_out(name: str) -> None:
    def prepare() -> None:
        photographs()
        for folder in ("pets/Cat", "new"):
            Path(folder).mkdir(exist_ok=True)
            (Path(folder) / name).write_bytes(HEIC)
            (Path(folder) / f"2{name}").write_bytes(HEIC)

    learned = call(LEARN, prepare)
    must_be_sound(learned)
    assert (learned.code, len(learned.lines)) == (2, 3)  # both files, and the error
    assert f"pets/Cat/2{name}: {REASON}" in learned.lines
    given = call(
        ["data", "import", "x", "--from", "pets", "--proportions", "1,0,0", "--data-dir", "d"], prepare
    )
    must_be_sound(given)
    assert f"pets/Cat/{name}: {REASON}" in given.lines
    labelled = call(["predict", "glyphs", "--support", "letters", "--images", "new"], lambda: two(prepare))
    assert labelled.code == 1
    assert f"new/{name}: {REASON}" in labelled.lines


@pytest.mark.parametrize(
    ("name", "kind"), [("IMG_1.HEIC", "a HEIC"), ("IMG_1.avif", "an AVIF"), ("IMG_1.nef", "an NEF")]
)
def test_photographs_of_phones_are_known_by_their_names_if_not_by_their_content(name: str, kind: str) -> None:
    def prepare() -> None:
        photographs()
        (Path("pets/Cat") / name).write_bytes(b"\0\0\0\x18ftypxxxx" + bytes(40))

    reason = f"pets/Cat/{name}: {kind} image, which cannot be read; save it as JPEG or PNG"
    line = ["data", "import", "x", "--from", "pets", "--proportions", "1,0,0", "--data-dir", "d"]
    for arguments in (LEARN, line):
        refused = call(arguments, prepare)
        must_be_sound(refused)
        assert reason in refused.errors
    with fresh_folder():
        prepare()
        assert reason in quietly(["predict", "glyphs", "--support", "pets", "--images", "pets"]).errors
        with pytest.raises(UsageError, match=reason):
            TrainedModel.open("glyphs").image_input.stack([f"pets/Cat/{name}"])


def two(prepare: object) -> None:
    prepare()  # type: ignore[operator]
    photographs(Path("letters"))


def test_a_second_try_replaces_the_classifier_if_asked() -> None:
    with fresh_folder() as folder:
        photographs()
        assert quietly(LEARN).code == 0
        before = (folder / "pets-classifier/support.safetensors").read_bytes()
        again = quietly(LEARN)
        assert (again.code, "exists" in again.errors) == (2, True)
        photographs(Path("pets/more"), 1)
        (folder / "pets/more/Cat").rename(folder / "pets/dog")
        for name in ("fish & chips", "Vögel"):
            for path in (folder / "pets/more" / name).iterdir():
                path.unlink()
        assert quietly([*LEARN, "--replace"]).code == 0
        assert (folder / "pets-classifier/support.safetensors").read_bytes() != before
        assert {path.name for path in folder.iterdir()} == {"pets", "pets-classifier"}
        (folder / "mine").mkdir()
        (folder / "mine/kept").write_text("precious")
        kept = quietly([*LEARN, "--out", "mine", "--replace"])
        assert (kept.code, kept.left) == (2, set())


def test_commands_to_copy_survive_spaces() -> None:
    with fresh_folder():
        photographs()
        learned = quietly([*LEARN, "--out", "my pets"])
        assert "label others with: pathaware predict 'my pets' --images PICTURES\n" in learned.out
        exported = quietly(["export", "my pets", "--to", "safetensors", "--script"])
        assert "my pets.py: python 'my pets.py' picture.png …\n" in exported.out


def test_a_classifier_answers_like_its_model_and_is_readable_by_others() -> None:
    with fresh_folder() as folder:
        photographs()
        assert quietly(LEARN).code == 0
        saved, model = TrainedModel.open(folder / "pets-classifier"), TrainedModel.open("glyphs")
        assert model.calibration is not None
        assert saved.calibration == model.calibration
        modes = {stat.S_IMODE(p.stat().st_mode) for p in (folder / "pets-classifier").iterdir()}
        (folder / "plain").touch()
        assert modes == {stat.S_IMODE((folder / "plain").stat().st_mode)}


def test_the_next_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "data"))
    line = ["data", "import", "pets", "--from", "pets", "--size", "8"]
    refused = call(line, photographs)
    must_be_sound(refused)
    assert "error: --proportions: pets: class Cat is not in a folder train, val or test" in refused.errors
    given = call([*line, "--proportions", "0.4,0.3,0.3"], photographs)
    assert given.code == 0
    assert "too small to train on: 1/1/1 classes" in given.out
    assert "Without training: pathaware learn pets" in given.out
    refused = call(["train", "pets"])
    must_be_sound(refused)
    assert "pathaware train folder --data pets" in refused.errors
    assert "did you mean" not in call(["train", "miniimagenet"]).errors


def test_a_classifier_is_not_measured_on_tasks_of_its_model(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "data"))
    with fresh_folder():
        photographs()
        assert quietly(LEARN).code == 0
        for command in ("evaluate", "report", "plot"):
            refused = quietly([command, "pets-classifier"])
            must_be_sound(refused)
            assert refused.code == 2
            assert "RUN: pets-classifier is a saved classifier" in refused.errors
            assert "pathaware predict pets-classifier --images DIR --score" in refused.errors
        assert quietly(["predict", "pets-classifier", "--images", "pets", "--score"]).code == 0
        refused = quietly(["evaluate", "photos"])
        assert "photos was trained on photographs" in refused.errors
        assert "--data" in refused.errors
