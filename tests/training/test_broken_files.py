"""Files and values that once ended in a traceback; found by `tests/fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathaware import Pamela, UsageError
from pathaware.cli import one_line
from pathaware.core.seeding import generator
from pathaware.core.settings import coerce, trust
from pathaware.models import build_model, mlp
from pathaware.training.config import Config, Training, parse_value, read_toml
from pathaware.training.presets import load_preset
from pathaware.training.run_folder import Run
from pathaware.training.train import train

HEX = "0x" + "f" * 5000


@pytest.mark.parametrize(
    ("value", "hint"),
    [(10**400, float), (10**30, int), (-(2**63) - 1, int), (int(HEX, 16), int)],
    ids=["float", "int", "below", "hexadecimal"],  # the last is one that Python does not write
)
def test_a_number_that_no_machine_counts_to_is_refused(value, hint):
    with pytest.raises(UsageError, match=r"seed: .{1,110} is not allowed"):
        coerce("seed", value, hint)


@pytest.mark.parametrize("tables", ["problem = 3", "[[problem]]", "problem = 'name'"])
def test_a_table_that_is_none_is_refused(tables):
    with pytest.raises(UsageError, match=r"problem: .* must be a table \[problem\]"):
        Config.from_toml(tables)


@pytest.mark.parametrize("table", ["problem", "method"])
def test_a_name_that_is_a_list_is_refused(table):
    tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, table: {"name": ["sine"]}}
    with pytest.raises(UsageError, match=rf"{table}: \['sine'\] is not allowed; must be a string"):
        Config.from_dict(tables)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = " + b"[" * 5000, b"a = ", b"a = " + b"9" * 5000])
def test_a_runs_configuration_that_is_no_toml_is_refused(tmp_path, content):
    (tmp_path / "config.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"run: .*config.toml"):
        Run.open(tmp_path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_path_that_cannot_be_one_is_no_run_folder(name):
    with pytest.raises(UsageError, match="is not a run folder"):
        Run.open(Path(name))


@pytest.mark.parametrize("name", ["a\0b", "a\0b.toml", "x" * 300])
def test_a_name_that_cannot_be_a_files_is_no_preset(name):
    with pytest.raises(UsageError, match=r"preset: .* must be a TOML file or one of those"):
        load_preset(name)


@pytest.mark.parametrize("device", ["meta", "mps", "cpu:1", "cuda:999", "cuda:99999999999", "cuda:٣"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(UsageError, match="device: "):
        _ = Training(device=device).torch_device


@pytest.mark.parametrize("shots", [10**12, 2**62 - 1])
def test_tasks_that_fit_in_no_memory_are_refused_before_a_folder_is_made(tmp_path, shots):
    config = Config.from_dict({"problem": {"name": "sine", "shots": shots}, "method": {"name": "maml"}})
    with pytest.raises(UsageError, match="these settings cannot be computed here"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_brackets_without_end_are_a_word():
    assert parse_value("[" * 9000) == "[" * 9000


def test_an_error_is_one_line_of_printable_characters_that_ends():
    assert one_line("a\nb\x00\x1b[31m \udcff") == "a b\\x00\\x1b[31m \\udcff"
    assert len(one_line("x" * 10_000)) == 2001


def test_the_configuration_of_a_run_is_a_preset_too(tmp_path):
    """It says "none" for a setting that is off, which presets took for a word."""
    tables = {"problem": {"name": "sine"}, "method": {"name": "pamela", "skip": None}}
    config = Config.from_dict(tables)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert Config.from_dict(load_preset(str(path))) == config


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: Pamela(mlp(1, (4,), 1), 10**10), "steps: 10000000000 is not allowed; must be at most 10000"),
        (lambda: build_model("..x:y", 5, 8, 3), r"model: \.\.x:y cannot be imported"),
        (lambda: generator(-1, "show"), "seed: -1 is not allowed"),
        (lambda: read_toml(f"seed = {HEX}"), "more than 64 bits"),
        (lambda: read_toml(f"[sweep]\nseed = [{HEX}]"), "more than 64 bits"),
        (lambda: read_toml("[sweep]\nseed = [1979-05-27]"), "1979-05-27 is a date"),
    ],
)
def test_a_value_beyond_reason_is_refused(use, message):
    trust({"problem": {"model_name": "..x:y"}})
    with pytest.raises(UsageError, match=message):
        use()
