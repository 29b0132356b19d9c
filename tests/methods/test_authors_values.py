"""Our defaults are the authors', or the difference is told."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pathaware.methods import METHODS, describe_method

AUTHORS = tomllib.loads(Path(__file__).with_name("authors_values.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", AUTHORS)
def test_a_default_is_the_authors_or_a_departure_that_is_told(name):
    entry, ours = AUTHORS[name], METHODS[name].settings()
    departs = entry.get("departs", {})
    assert entry["source"]
    assert set(departs) <= set(entry["values"]) <= set(ours)
    for setting, value in entry["values"].items():
        assert (ours[setting] == value) != (setting in departs), f"{setting}: ours is {ours[setting]}"
        if setting in departs:
            assert departs[setting]


@pytest.mark.parametrize("name", [name for name in METHODS if name != "pamela"])
def test_every_method_says_where_it_departs_from_its_authors(name):
    """But PAMELA: we found no code; docs/reproduction.md lists how we read the paper."""
    _, heading, told = describe_method(name).partition("Departures from the authors' code")
    assert heading, "its docstring has no paragraph that begins with Departures from the authors' code"
    assert len(told.split()) > 5
