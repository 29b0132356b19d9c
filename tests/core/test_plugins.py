"""Custom code is imported if the user trusts it, and only then."""

from __future__ import annotations

import sys

import pytest

from pathaware.core.errors import UsageError
from pathaware.core.settings import load_plugin, trust
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.run_files import CONFIG
from pathaware.training.run_folder import Run


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A module on the path that writes a file when it is imported."""
    (tmp_path / "planted.py").write_text("open('trace', 'w').close()\nthing = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("pathaware.core.settings._trusted", set())
    yield tmp_path / "trace"
    sys.modules.pop("planted", None)


@pytest.mark.parametrize(
    ("table", "setting"), [("method", 'name = "planted:thing"'), ("problem", 'model_name = "planted:thing"')]
)
def test_a_run_that_names_code_does_not_run_it(planted, tmp_path, table, setting):
    tables = {"problem": 'name = "classification"', "method": 'name = "maml"'}
    tables[table] = f"{tables[table]}\n{setting}" if table == "problem" else setting
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / CONFIG).write_text("".join(f"[{name}]\n{text}\n" for name, text in tables.items()))
    with pytest.raises(UsageError, match="PATHAWARE_TRUST=planted"):
        build(Run.open(folder).config)
    assert not planted.exists()


def test_a_module_that_the_caller_named_is_imported(planted):
    trust({"method": {"name": "planted:thing"}, "training": {"rate": 1.0}})
    assert load_plugin("method", "planted:thing") == 3
    assert planted.exists()


def test_a_module_listed_in_the_environment_is_imported(planted, monkeypatch):
    monkeypatch.setenv("PATHAWARE_TRUST", "other,planted")
    assert load_plugin("method", "planted:thing") == 3


def test_an_object_that_is_no_method_is_refused(planted):
    trust({"method": {"name": "planted:thing"}})
    with pytest.raises(UsageError, match="is int, not a pathaware"):
        Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "planted:thing"}})


def test_a_module_that_is_already_imported_is_trusted(planted, tmp_path):
    import planted as module  # noqa: F401

    assert load_plugin("model", "planted:thing") == 3
