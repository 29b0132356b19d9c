from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from pathaware.cli import main
from tests.calling import pathaware

SMALL = ("online", "sine", "--tasks", "4", "--seeds", "2", "--only", "scratch", "--only", "online")
QUICK = ("--set", "online.rate=0.01", "--set", "online.pull=0.1")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("online")
    done = pathaware(*SMALL, *QUICK, "--out", "out", cwd=folder)
    assert done.code == 0, done.err
    return folder, done


def test_a_comparison_prints_a_table_and_its_progress_on_stderr(compared):
    _, done = compared
    assert "| method | mse, first tenth | mse, last quarter |" in done.out
    assert "**online, Algorithm 2**" in done.out
    assert "from scratch: 4 settings to choose from" in done.err
    assert "online, Algorithm 2: 3 settings to choose from" in done.err
    assert "from scratch: seed 1, " in done.err


def test_a_comparison_writes_its_record_and_its_figure(compared):
    folder, _ = compared
    record = json.loads((folder / "out/online-sine.json").read_text())
    assert set(record["contestants"]) == {"online", "scratch"}
    assert record["contestants"]["online"]["settings"]["pull"] == 0.1
    assert {len(errors) for errors in record["contestants"]["scratch"]["errors"]} == {4}
    assert {"commit", "environment", "stream", "seeds", "every", "steps"} <= set(record)
    assert (folder / "out/online-sine.png").read_bytes()[:4] == b"\x89PNG"
    assert ET.parse(folder / "out/online-sine.svg").getroot().tag.endswith("svg")


def test_nothing_is_overwritten(compared):
    folder, _ = compared
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    done = pathaware(*SMALL, "--out", "out", cwd=folder)
    assert done.code == 2
    assert done.err == ("error: --out: out/online-sine.json exists; name another folder or remove it\n")
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "out").iterdir()} == before


def test_json_is_one_object_and_nothing_else(tmp_path):
    one = ("online", "glyphs", "--tasks", "4", "--seeds", "1", "--only", "tuning", "--set", "tuning.rate=0.1")
    done = pathaware(*one, "--json", cwd=tmp_path)
    record = json.loads(done.out)
    assert record["metric"] == "error rate"
    assert record["contestants"]["tuning"]["tried"] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cosine",), "stream: 'cosine' must be one of sine, glyphs"),
        (("sine", "--tasks", "0"), "'--tasks'"),
        (("sine", "--seeds", "0"), "'--seeds'"),
        (("sine", "--only", "nobody"), "--only: 'nobody' must be one of online, literal"),
        (("sine", "--set", "nobody.rate=1"), "--set: 'nobody' must be one of"),
        (("sine", "--only", "online", "--set", "scratch.rate=0.1"), "--set: scratch is not among the"),
        (("sine", "--set", "scratch.pull=0.1"), "pull: scratch has no such setting; it has rate, fresh"),
        (("sine", "--set", "online.forget=all"), "forget: 'all' is not allowed; must be one of reservoir"),
        (("sine", "--set", "pull=1"), "--set: 'pull=1' must have the form NAME.SETTING=VALUE"),
        (("sine", "--set", "online.pull=much"), "pull: 'much' is not allowed; must be a finite number"),
        (("sine", "--set", "online.pull=-1"), "pull: -1.0 is not allowed; must be at least 0"),
        (("sine", "--set", "leader.replay=0"), "replay: 0 is not allowed; must be at least 1"),
        (("sine", "--every", "13"), "every: 13 is more than the 12 items of a data set"),
        (("glyphs", "--items", "5000"), "shots 5000 and queries 10"),
        (("sine", "--items", "9" * 30), "'--items'"),
        (("sine", "--out", "file/out"), "--out: file/out cannot be created"),
        (("sine", "--out", "a\0b"), "null byte"),
        (("sine", "--out", "x" * 300), "File name too long"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, message):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["online", *arguments])
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
