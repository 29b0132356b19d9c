"""`predict --unknown --why`, `suggest`, `evaluate --open-set` and `export --learner`, as they are called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pathaware.inference import calibration
from pathaware.inference.calibration import CALIBRATION, SHARES, Calibration, Cell
from pathaware.inference.open_set import SCORES
from tests.calling import pathaware, refused
from tests.inference.models import class_folders, save_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run, labelled pictures and new ones."""
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "run")
    class_folders(tmp_path / "pets", {"bee": 2, "cat": 2})
    class_folders(tmp_path / "new", {"cat": 2, "dog": 2}, first=50)
    return tmp_path


def call(line: str, code: int = 0) -> tuple[str, str]:
    ended = pathaware(*line.split())
    assert ended.code == code, ended.err
    return ended.out, ended.err


def calibrate(threshold: float) -> None:
    Calibration((Cell(2, 2, 1.0, (threshold,) * len(SHARES), 10),)).write(Path("run"))


def test_unknown_pictures_have_a_label_of_their_own(here):
    calibrate(threshold=-1.0)  # everything is farther away
    out, _ = call("predict run --support pets --images new --unknown 0.05 --format json --device cpu")
    assert {(row["label"], row["unknown"]) for row in json.loads(out)} == {("none of these", True)}
    calibrate(threshold=9.0)  # nothing is
    out, _ = call("predict run --support pets --images new --unknown 0.05 --format json --device cpu")
    assert {row["unknown"] for row in json.loads(out)} == {False}
    assert {row["label"] for row in json.loads(out)} <= {"bee", "cat"}


def test_pictures_of_no_class_are_sorted_into_a_folder_of_their_own(here):
    calibrate(threshold=-1.0)
    _, err = call("predict run --support pets --images new --unknown 0.05 --sort sorted --device cpu")
    assert err == "copied 4 pictures into sorted: none of these 4\n"
    names = sorted(path.name for path in Path("sorted/none of these").iterdir())
    assert names == ["0-2.png", "0.png", "1-2.png", "1.png"]


def test_reasons_are_shown_and_doubtful_labels_named(here):
    out, err = call("predict run --support pets --images new --why --show sheet.png --device cpu")
    assert out.splitlines()[0].endswith("| for | against |")
    assert "bee/0.png (" in out or "cat/0.png (" in out or "bee/1.png (" in out or "cat/1.png (" in out
    assert Path("sheet.png").stat().st_size > 1000
    for line in err.splitlines():
        assert line.startswith("pets/")
        assert "may be wrong" in line


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("predict run --support pets --images new --unknown 0.05", "--unknown: the run is not calibrated"),
        ("suggest run --support pets --images new --count 0", "--count"),
        ("evaluate sine --open-set --tasks 2", "--open-set: sine-k10 has no classes"),
        ("evaluate sine --calibrate --tasks 2", "--calibrate: sine-k10 has no classes"),
        ("export run --to onnx", "--support: name a folder of labelled pictures"),
        ("export run --support pets", "--to: is needed, except for --learner"),
        ("export run --support pets --to onnx --ways 3", "--ways: applies to --learner only"),
        ("export run --learner --to torch", "--to: must be onnx for --learner, not torch"),
        ("export run --learner --support pets", "--support: does not apply to --learner"),
        ("export run --learner --script", "--script: does not apply to --learner"),
    ],
)
def test_what_cannot_be_done_is_one_line(line, message, here):
    assert message in refused(*line.split())


def test_a_share_that_was_not_calibrated_is_refused(here):
    calibrate(threshold=1.0)
    _, err = call("predict run --support pets --images new --unknown 0.9 --device cpu", code=2)
    assert "--unknown: 0.9 is not allowed; must be 0.005 to 0.5" in err
    _, err = call("predict nowhere --images new --unknown 5", code=2)  # before anything is read
    assert err.startswith("error: --unknown: 5 is not allowed; must be 0.005 to 0.5")


def test_pictures_to_label_next_are_named(here):
    out, _ = call("suggest run --support pets --images new --count 2 --device cpu")
    assert len(set(out.splitlines())) == 2
    assert set(out.splitlines()) < {f"new/{label}/{i}.png" for label in ("cat", "dog") for i in (0, 1)}
    out, _ = call("suggest run --support pets --images new --count 9 --json --device cpu")
    assert json.loads(out)["unlabelled"] == len(json.loads(out)["pictures"]) == 4


def test_an_evaluation_says_how_reliable_confidence_is(tmp_path):
    figure = tmp_path / "reliability.png"
    line = "evaluate glyphs --tasks 3 --queries alone --open-set --device cpu"
    found = json.loads(call(f"{line} --json --show {figure}")[0])
    assert 0 <= found["calibrated_error"] <= 1
    assert found["temperature"] == pytest.approx(1.202, abs=0.01)
    assert sum(share for _, _, share in found["reliability"]) == pytest.approx(1)
    assert found["risk_coverage"][-1] == [1.0, pytest.approx(1 - found["accuracy"])]
    assert set(found["open_set"]["auroc"]) == set(SCORES)
    assert figure.stat().st_size > 1000
    text = call("evaluate glyphs --tasks 2 --device cpu")[0]
    assert "expected calibration error" in text
    assert "temperature" not in text  # it belongs to predictions of each query alone


def test_one_task_has_no_interval():
    out, _ = call("evaluate glyphs --tasks 1 --queries alone --open-set --device cpu")
    assert "over 1 test task, worst" in out
    assert "±" not in out
    assert "over 2 test tasks, worst" in (two := call("evaluate sine --tasks 2 --device cpu")[0])
    assert "±" in two


def test_a_run_is_calibrated_on_demand(here, monkeypatch):
    small = {"tasks": 1, "seed": 0, "split": "val", "sizes": [(2, 1)]}
    monkeypatch.setattr(calibration.fit_calibration, "__kwdefaults__", small)
    call("evaluate run --calibrate --tasks 1 --device cpu")
    stored = json.loads(Path("run", CALIBRATION).read_text())
    assert [(cell["ways"], cell["shots"]) for cell in stored["cells"]] == [(2, 1)]
