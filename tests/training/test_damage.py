"""Files of a run that are corrupt, cut short, changed or malicious."""

from __future__ import annotations

import pickle
import re
import zlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import pathaware
from pathaware.core.errors import UsageError
from pathaware.training.checksummed import CorruptFile, read_checksummed, write_checksummed
from pathaware.training.run_files import FolderLock
from pathaware.training.run_folder import Run
from pathaware.training.train import open_to_resume, train
from tests.training.fits import in_folder, resumed
from tests.training.runs import assert_same_end, sine, stopped_run


def damages(content: bytes) -> list[bytes]:
    """The content cut at several lengths, and with single bytes flipped."""
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


def test_a_damaged_state_is_replaced_by_the_one_before_with_a_warning(tmp_path, capsys):
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
    calm = train(settings, tmp_path / "calm")
    run = Run.create(tmp_path / "run", settings)
    with in_folder(run) as fit:
        for _ in range(22):
            fit.advance()
    newest = run._states()[0]
    newest.write_bytes(newest.read_bytes()[:-3])
    resumed(run.folder)
    assert "is damaged" in capsys.readouterr().err
    assert_same_end(run, calm)


def test_damage_to_metrics_is_an_error_or_readable_and_never_changes_the_model(tmp_path):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "metrics.jsonl"
    whole, model = path.read_bytes(), run.load().state_dict()
    refusals = []
    for content in damages(whole):
        path.write_bytes(content)
        try:
            assert all(isinstance(row["loss"], (int, float)) for row in run.metrics())
            assert not run.finished
        except UsageError as error:
            refusals.append(str(error))
    assert len(refusals) > 50
    assert all(re.search(r"metrics\.jsonl is damaged \(line \d+\)", line) for line in refusals)
    assert all(torch.equal(value, model[name]) for name, value in run.load().state_dict().items())


def test_a_metrics_line_that_was_cut_off_is_dropped_with_a_note(tmp_path):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "metrics.jsonl"
    whole, rows, notes = path.read_bytes(), list(run.metrics()), []
    path.write_bytes(whole[:-20])
    assert list(run.metrics(notes.append)) == rows[:-1]
    assert notes == [f"{path}: line {len(rows)} was cut off and is dropped"]
    path.write_bytes(whole[:-1])  # only the line break is missing
    assert list(run.metrics(notes.append)) == rows
    assert len(notes) == 1


@pytest.mark.parametrize("line", [b"", b"null", b"{}", b"[" * 5000, b'{"iteration": "5"}', b"\xff\xfe"])
def test_a_damaged_line_in_the_middle_of_the_metrics_is_named(tmp_path, line):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[4:]]))
    with pytest.raises(UsageError, match=r"metrics\.jsonl is damaged \(line 4\)"):
        list(run.metrics())
    with pytest.raises(UsageError, match=r"metrics\.jsonl is damaged \(line 4\)"):
        resumed(run.folder)


def test_metrics_of_older_runs_with_a_checksum_per_line_are_read(tmp_path):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "metrics.jsonl"
    rows, lines = list(run.metrics()), path.read_bytes().splitlines()
    path.write_bytes(b"".join(line[:-1] + b', "crc32": %d}\n' % zlib.crc32(line) for line in lines))
    assert list(run.metrics()) == rows


def test_a_run_says_with_which_code_it_was_trained_and_resumed(tmp_path):
    run = stopped_run(tmp_path / "run")
    with in_folder(run):
        pass
    entries = run.provenance()
    assert [entry["iteration"] for entry in entries] == [0, 20]
    for entry in entries:
        assert {"commit", "dirty", "environment", "device", "processes"} <= set(entry)
    for content in (b"", b"{}", b"[1]", b"\xff", b"[" * 5000):
        (run.folder / "provenance.json").write_bytes(content)
        with pytest.raises(UsageError, match=r"provenance\.json is damaged .*; remove it"):
            run.provenance()


@pytest.mark.parametrize(("old", "new"), [("rate = 0.002", "rate = 0.003"), ("steps = ", "steps = 1")])
def test_settings_that_were_changed_in_the_folder_are_refused_by_name(tmp_path, old, new):
    run = stopped_run(tmp_path / "run")
    path = run.folder / "config.toml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UsageError, match=r"is not what .* was made with: .*here|config\.toml"):
        resumed(run.folder)
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
        open_to_resume(run.folder, {"training": {"seed": 3}})


def test_a_checksummed_file_returns_what_was_written(tmp_path):
    tensors = {"a": torch.randn(3, 2), "b": torch.tensor(7), "c": torch.tensor([True, False])}
    write_checksummed(tmp_path / "file", tensors, {"iteration": 3})
    found, about = read_checksummed(tmp_path / "file")
    assert about == {"iteration": 3}
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    save_file(tensors, tmp_path / "without")
    with pytest.raises(CorruptFile, match="no checksum"):
        read_checksummed(tmp_path / "without")


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
    for read in (run.load, run.state, run.histograms, lambda: resumed(run.folder)):
        with pytest.raises(UsageError):
            read()
    for name in ("metrics.jsonl", "config.toml"):
        (run.folder / name).write_bytes(pickle.dumps(Malice(trace)))
        with pytest.raises(UsageError):
            list(run.metrics()) or Run.open(run.folder)
    assert not trace.exists()


def test_nothing_on_a_load_path_unpickles():
    """Three places read pickles: old data sets, of which numbers only are accepted, and weights of other
    networks, which PyTorch reads without executing code."""
    root = Path(pathaware.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(word in path.read_text(encoding="utf-8") for word in UNSAFE)
    }
    networks = {"models/backbones.py", "models/efficientnet_lite.py"}
    assert found == {"data/importers/pickles.py", *networks}
    for file in networks:
        weights = (root / file).read_text(encoding="utf-8")
        assert weights.count("torch.load(") == weights.count("weights_only=True)") == 1


@pytest.mark.parametrize("left", [["config.toml"], [".pathaware-0123456789abcdef"], ["run.lock"], []])
def test_a_run_killed_while_it_was_created_can_be_started_again(tmp_path, left):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        (folder / name).write_bytes(b"")
    assert train(sine(iterations=3), folder).finished


def test_a_configuration_is_never_taken_for_a_leftover(tmp_path):
    Run.create(tmp_path / "run", sine())
    with pytest.raises(UsageError, match="holds another run"):
        Run.create(tmp_path / "run", sine())


def test_what_a_killed_clean_up_left_is_removed_by_resuming_and_not_by_reading(tmp_path):
    run = train(sine(iterations=3), tmp_path / "run")
    clean = {path.name for path in run.folder.iterdir()}
    for name in ("run.lock", "state-2.safetensors", "state-3.safetensors"):
        (run.folder / name).write_bytes(b"left")
    (run.folder / "metrics.jsonl.new").write_bytes(b"of somebody else")
    assert Run.open(run.folder).finished
    assert (run.folder / "state-2.safetensors").exists()
    with FolderLock(run.folder, "held"):
        train(run.config, run.folder, resume=True)
        assert (run.folder / "state-2.safetensors").exists()  # a process is at work here
    train(run.config, run.folder, resume=True)
    assert {path.name for path in run.folder.iterdir()} == clean | {"metrics.jsonl.new"}
