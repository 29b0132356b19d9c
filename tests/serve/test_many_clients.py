"""Fifty people at once: no error, no answer that belongs to somebody else, and their memory is given back."""

from __future__ import annotations

import json
import runpy

import pytest
import torch

from tests.serve.serving import ROOT

SERVING = runpy.run_path(str(ROOT / "research/pathaware_research/benchmarks/serving.py"))


def test_fifty_clients_are_served_and_kept_apart(monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    found = SERVING["measure"]("glyphs", 50, 0, slow=30)
    assert found["errors"] == []
    assert found["sessions"] == 50
    assert found["largest_difference"] < 1e-5
    assert found["memory_mib"]["after"] <= 1.1 * found["memory_mib"]["before"]
    for name in ("threads", "descriptors"):
        assert found[name]["after"] <= found[name]["before"]
    assert SERVING["good"](found)


@pytest.mark.parametrize("record", ["serving-cpu", "soak-cpu"])
def test_the_numbers_in_the_document_are_those_that_were_measured(record):
    found = json.loads((ROOT / f"results/use/{record}.json").read_text(encoding="utf-8"))
    assert SERVING["good"](found)
    text = " ".join((ROOT / "docs/serving.md").read_text(encoding="utf-8").split())
    ask, adapt, held = found["latency"]["classify"], found["latency"]["adapt"], found["memory_mib"]
    sessions = f" in {found['sessions']:,} sessions" if record == "soak-cpu" else ""
    for words in (
        f"made {found['requests']:,} requests{sessions} without an error",
        f"{ask['p50_ms']:.0f} ms (95 % within {ask['p95_ms']:.0f} ms)",
        f"{adapt['p50_ms'] / 1000:.1f} s (95 % within {adapt['p95_ms'] / 1000:.1f} s)",
        f"held {held['before']} MiB before, {held['peak']} MiB at most, and {held['after']} MiB afterwards",
    ):
        assert words in text, words
    assert found["threads"]["after"] <= found["threads"]["before"]
    assert found["descriptors"]["after"] <= found["descriptors"]["before"]


def test_the_soak_lasted_ten_minutes_with_a_hundred_clients():
    found = json.loads((ROOT / "results/use/soak-cpu.json").read_text(encoding="utf-8"))
    assert found["clients"] >= 100
    assert found["slow_clients"] >= 60
    assert found["seconds"] >= 600


def test_an_answer_to_somebody_else_would_be_noticed():
    torch.set_default_dtype(torch.float32)
    one, other = SERVING["Client"](0), SERVING["Client"](4)
    model = SERVING["TrainedModel"].open("glyphs", "cpu")
    pixels = model.pixels([picture for _, picture in other.support])
    wrong = model.adapt(pixels, torch.tensor([0, 1]), 2).probabilities(model.pixels(one.queries))
    one.predictions.append([dict(zip(["0/0", "0/1"], row, strict=True)) for row in wrong.tolist()])
    assert SERVING["largest_difference"]("glyphs", [one]) > 0.01
    one.predictions[0] = [{"4/0": 0.5, "4/1": 0.5}]
    assert SERVING["largest_difference"]("glyphs", [one]) == pytest.approx(1.0)
