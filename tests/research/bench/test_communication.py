"""The model of what communication costs, and the page that shows it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from torch.nn.functional import cross_entropy

from pathaware.methods import get_method
from pathaware.models import conv4
from pathaware.training.tables import markdown

ROOT = Path(__file__).parents[3]
MODEL = runpy.run_path(str(ROOT / "research/pathaware_research/benchmarks/communication.py"))


def test_one_gpu_has_nobody_to_talk_to():
    assert MODEL["ring"](1, 1e6) == MODEL["tree"](1, 1e6) == 0


def test_a_large_message_takes_its_bandwidth_and_a_small_one_its_latency():
    assert MODEL["ring"](1024, 1e12) == pytest.approx(2 * 1e12 / MODEL["NETWORK_BANDWIDTH"], rel=2e-3)
    assert MODEL["ring"](1024, 0) == pytest.approx(2 * 1023 * MODEL["NETWORK_LATENCY"])
    assert MODEL["tree"](1024, 0) == pytest.approx(
        2 * (3 * MODEL["NVLINK_LATENCY"] + 7 * MODEL["NETWORK_LATENCY"])
    )


@pytest.mark.parametrize("name", ["PAMELA", "MAML"])
def test_the_message_is_as_long_as_there_are_meta_parameters(name):
    learner = get_method(name.lower()).build(conv4(5, size=84), {}, cross_entropy)
    count = sum(p.numel() for p in learner.parameters())
    assert MODEL["PARAMETERS"][name] == count


def test_the_tables_of_the_page_are_those_of_the_model():
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in (MODEL["weak"](), MODEL["strong"]()):
        assert markdown(table) in page
