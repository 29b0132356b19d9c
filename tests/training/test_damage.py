"""Files of a run that rot, are cut short, changed, or planted."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import pathaware
from pathaware.core.errors import UsageError
from pathaware.training.checksummed import CorruptFile, read_checksummed, write_checksummed
from pathaware.training.run_folder import Run
from pathaware.training.session import TrainingSession, asked_to_resume, resume_run, train_run
from tests.training.runs import assert_same_end, sine, stopped_run


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def damages(content: bytes) -> list[bytes]:
    """Cut short at every length that matters, and with bytes flipped all over."""
    lengths = sorted({0, 1, 7, 8, 9, 64, len(content) // 2, len(content) - 1})
    flips = []
    for place in sorted({*range(min(len(content), 40)), *range(0, len(content), max(1, len(content) // 60))}):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        flips.append(bytes(changed))
    return [content[:n] for n in lengths if n < len(content)] + flips


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "histograms.safetensors"])
def test_damage_to_what_a_run_has_learned_is_an_error_and_never_another_model(tmp_path, name):
    run = stopped_run(tmp_path / "run")
    path = run.folder / name
    whole = path.read_bytes()
    for content in damages(whole):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name} cannot be read"):
            run.load() if name.startswith("checkpoint") else run.histograms()
    path.write_bytes(whole)
    assert run.load() is not None


def test_a_damaged_state_is_passed_over_aloud_for_the_one_before(tmp_path, capsys):
    run = stopped_run(tmp_path / "run")
    newest, older = run._states()
    assert (newest.name, older.name) == ("state-20.safetensors", "state-10.safetensors")
    whole, said = newest.read_bytes(), []
    for content in damages(whole):
        newest.write_bytes(content)
        said.clear()
        state = run.state(said.append)
        assert state is not None
        assert state.iteration == 10
        assert "state-20.safetensors is damaged" in said[0]
    older.write_bytes(b"")
    with pytest.raises(UsageError, match=r"no state in .* can be read"):
        run.state()


def test_a_run_with_a_damaged_state_still_ends_as_one_that_was_not_stopped(tmp_path, capsys):
    settings = sine(validate=5, histograms=5, iterations=30)
    calm = train_run(settings, tmp_path / "calm", quiet=True)
    run = Run.create(tmp_path / "run", settings)
    with TrainingSession(run, quiet=True) as session:
        for _ in range(22):
            session.advance()
    newest = run._states()[0]
    newest.write_bytes(newest.read_bytes()[:-3])
    resume_run(run.folder, quiet=True)
    assert "is damaged" in capsys.readouterr().err
    assert_same_end(run, calm)


def test_a_damaged_report_is_an_error_and_a_cut_off_one_too(tmp_path):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "metrics.jsonl"
    whole = path.read_bytes()
    number = len(list(run.metrics()))
    for content in damages(whole):
        path.write_bytes(content)
        try:
            found = len(list(run.metrics()))
        except UsageError:
            continue
        assert found < number


@pytest.mark.parametrize(("old", "new"), [("rate = 0.002", "rate = 0.003"), ("steps = ", "steps = 1")])
def test_settings_that_were_changed_in_the_folder_are_refused_by_name(tmp_path, old, new):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "config.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UsageError, match=r"is not what .* was made with: .*here|config\.toml"):
        resume_run(run.folder, quiet=True)
    with pytest.raises(UsageError, match=r"is not what .* was made with: .*here|config\.toml"):
        Run.open(run.folder).load()


def test_damage_to_the_settings_is_an_error_or_changes_none(tmp_path):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "config.toml"
    whole, refused = path.read_bytes(), 0
    for content in damages(whole):
        path.write_bytes(content)
        try:
            opened = Run.open(run.folder)
            opened.load()
        except UsageError:
            refused += 1
            continue
        assert opened.config == run.config
    assert refused > 50


def test_going_on_with_other_settings_is_refused_and_says_what_differs(tmp_path):
    run = stopped_run(tmp_path / "run")
    with pytest.raises(UsageError, match=r"other settings: training\.seed 0, here 3"):
        asked_to_resume(run.folder, {"training": {"seed": 3}})


def test_a_sealed_file_gives_back_what_was_written(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.tensor(7), "c": torch.tensor([True, False])}
    write_checksummed(tmp_path / "file", tensors, {"iteration": 3})
    found, about = read_checksummed(tmp_path / "file")
    assert about == {"iteration": 3}
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    save_file(tensors, tmp_path / "unsealed")
    with pytest.raises(CorruptFile, match="no checksum"):
        read_checksummed(tmp_path / "unsealed")


UNSAFE = ("import pickle", "torch.load(", "np.load(")


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_no_file_of_a_run_can_run_code(tmp_path):
    run = stopped_run(tmp_path / "run")
    trace = tmp_path / "trace"
    for path in run.folder.glob("*.safetensors"):
        path.write_bytes(pickle.dumps(Malice(trace)))
    for read in (run.load, run.state, run.histograms, lambda: resume_run(run.folder, quiet=True)):
        with pytest.raises(UsageError):
            read()
    for name in ("metrics.jsonl", "config.toml"):
        (run.folder / name).write_bytes(pickle.dumps(Malice(trace)))
        with pytest.raises(UsageError):
            list(run.metrics()) or Run.open(run.folder)
    assert not trace.exists()


def test_nothing_on_a_load_path_unpickles():
    """`pickle` is in one place only: a reader of old data sets that lets numbers alone through."""
    root = Path(pathaware.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(
            word in path.read_text(encoding="utf-8") for word in ("import pickle", "torch.load(", "np.load(")
        )
    }
    assert found == {"datasets/unpickle.py"}
