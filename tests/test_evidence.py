"""Documents print only numbers that records support, and compare only what can be compared."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pathaware.experiments.run_store import Results
from tools import document_numbers
from tools.document_numbers import EXCEPTIONS, Evidence, measured, unsupported
from tools.documents import compared_problems

ROOT = Path(__file__).parents[1]


def test_every_measured_number_has_a_record_or_a_stated_exception():
    assert not unsupported(ROOT), "see tools/document_numbers.toml"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("PAMELA reaches 76.3 on it.", ["76.3"]),
        ("89 % of the answers are right", ["89"]),
        ("it takes 12 ms, or 1,200 seconds", ["12", "1,200"]),
        ("three times 5 images of 84×84, 60,000 iterations", []),
        ("`--rate 0.01` and [a link](page-1.5.md)", []),
        ("```\n0.5 ms\n```", []),
        ("<!-- table: made by `make tables` -->\n| 12.5 |\n<!-- end of table -->", []),
        ("| a hand-made table | 12.5 |", ["12.5"]),
        ("about .63 and 5 of 7", [".63"]),
    ],
)
def test_what_counts_as_a_measured_number(text, found):
    assert list(measured(text)) == found


def test_a_number_without_a_record_is_found(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/one.json").write_text('{"accuracy": 0.7231, "config": {"rate": 0.4321}}')
    (tmp_path / "docs/page.md").write_text("It is 72.3 % (`results/one.json`), not 72.4 % or 0.4321.")
    (tmp_path / "README.md").write_text("It is 72.3 %.")
    exceptions = tmp_path / "exceptions.toml"
    monkeypatch.setattr(document_numbers, "EXCEPTIONS", exceptions)
    nothing = "sources = {}\ntables = {}\neverywhere = {}\n"
    exceptions.write_text(nothing)
    assert unsupported(tmp_path) == {"README.md": ["72.3"], "docs/page.md": ["72.4", "0.4321"]}
    exceptions.write_text(nothing + '["docs/page.md"]\n"72.4" = "a reason"\n"0.4321" = "another"\n')
    assert unsupported(tmp_path) == {"README.md": ["72.3"]}


def test_a_source_that_does_not_exist_is_an_error(tmp_path):
    (tmp_path / "README.md").write_text("See `results/gone.json`.")
    with pytest.raises(ValueError, match=r"README\.md names results/gone\.json, which does not exist"):
        Evidence(tmp_path, tmp_path / "README.md")


def test_every_exception_has_a_reason():
    stated = tomllib.loads(EXCEPTIONS.read_text(encoding="utf-8"))
    for name, table in stated.items():
        if name != "sources":
            assert all(isinstance(reason, str) and len(reason) > 5 for reason in table.values()), name


def test_methods_in_a_row_of_the_readme_were_trained_and_evaluated_under_equal_conditions():
    rows = [each.compared() for each in compared_problems(Results.read(ROOT / "results"))]
    assert sum(bool(maml) for maml, _ in rows) >= 7
    for maml, pamela in rows:
        assert [result.seed for result in maml] == [result.seed for result in pamela]
        assert [result.conditions for result in maml] == [result.conditions for result in pamela]
        assert len({str(result.conditions) for result in maml}) <= 1
