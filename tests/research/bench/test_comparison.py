"""Implementations are checked before they are timed, and reported if they are missing or fail."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import json
import sys

import pytest
import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware_research.bench import comparison, timing
from pathaware_research.bench.comparison import (
    SAME,
    bench,
    cell,
    header,
    implementations,
    lines,
    memory_lines,
)
from pathaware_research.bench.implementations import ENGINE, LOOP, Unavailable
from pathaware_research.bench.libraries import LIBRARIES, Higher, Library
from pathaware_research.bench.timing import in_turns
from pathaware_research.bench.workloads import (
    WORKLOADS,
    Inputs,
    Job,
    SyntheticImages,
    TimedSine,
    Workload,
    choose,
)

CPU = torch.device("cpu")
WAVES = Workload("waves", "waves", TimedSine(shots=3, queries=4), tasks=2, steps=2)
SQUARES = Workload(
    "squares", "squares", SyntheticImages(ways=2, shots=1, queries=2, size=16, width=2), tasks=2, steps=2
)


@pytest.fixture(autouse=True)
def _single_precision():
    """The command runs in float32 and asks for float64 where it checks."""
    torch.set_default_dtype(torch.float32)


class Wrong(Library):
    """Does not divide by the number of tasks, and does not adapt."""

    name = title = "wrong"
    module = "torch"

    def backward(self, model, episodes, loss, steps, rate, order) -> None:
        Higher().backward(model, episodes, loss, steps, rate, order)
        for parameter in model.parameters():
            parameter.grad *= len(episodes)

    def adapt(self, model, x: Tensor, y: Tensor, loss, steps, rate) -> nn.Module:
        return model


class Failing(Wrong):
    name = title = "failing"

    def backward(self, *arguments) -> None:
        raise ValueError("the first line\nand another")


def measured(*among, workload=WAVES) -> dict:
    return bench([workload], among, device=CPU, precision="fp32", repeats=2, threads=1)


def row(record: dict, what: str, method: str = "maml", order: str | None = None) -> dict:
    return next(
        r["entries"]
        for r in record["rows"]
        if (r["what"], r["method"]) == (what, method) and order in (None, r["order"])
    )


@pytest.mark.parametrize("workload", [WAVES, SQUARES], ids=lambda w: w.name)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_librarys_meta_gradients_and_adapted_networks_are_ours(library, workload):
    try:
        library.library()
    except Unavailable as reason:
        pytest.skip(f"{library.name}: {reason}")
    for order in ("second", "first"):
        job = Job(workload, "training", "maml", order)
        episodes = Inputs(job).episodes.to(dtype=torch.float64)
        ours = ENGINE.meta_gradient(job, episodes)
        assert (library.meta_gradient(job, episodes) - ours).norm() < SAME * ours.norm()
    job = Job(workload, "adaptation", "maml", "none")
    ours = ENGINE.predictions(job, episodes)
    assert (library.predictions(job, episodes) - ours).norm() < SAME * ours.norm()


def test_a_record_holds_times_and_differences():
    record = json.loads(json.dumps(measured(ENGINE, LOOP)))
    for what in ("training", "adaptation"):
        for method in ("maml", "pamela"):
            for entry in row(record, what, method).values():
                low, high = entry["quartiles_ms"]
                assert 0 < low <= entry["ms"] <= high
                assert entry["difference"] < 1e-10
    assert {r["order"] for r in record["rows"]} == {"second", "first", "none"}
    assert {"precision", "repeats"} <= set(record)
    training = [r for r in record["rows"] if r["what"] == "training"]
    assert all(0 < r["error"] < 1e-3 for r in training)  # float32 against float64
    assert header(record, "training")[-1] == "error"
    assert "error" not in header(record, "adaptation")


def test_several_precisions_have_rows_of_their_own():
    record = bench([WAVES], [ENGINE], device=CPU, precision=["fp32", "bf16"], repeats=1, threads=1)
    assert record["precision"] == "fp32, bf16"
    column = header(record, "training").index("precision")
    found = [line[column] for line in lines(record, "training")]
    assert found == ["fp32", "fp32", "bf16", "bf16"] * 2
    ratio = header(record, "training").index("PAMELA / MAML")
    by_hand = (
        row(record, "training", "pamela")["pathaware"]["ms"] / row(record, "training")["pathaware"]["ms"]
    )
    assert lines(record, "training")[1][ratio] == f"{by_hand:.2f}"


def test_an_implementation_with_another_result_is_marked():
    record = measured(ENGINE, Wrong())
    for what in ("training", "adaptation"):
        entry = row(record, what)["wrong"]
        assert entry["ms"] > 0
        assert not entry["same"]
        assert "not the same result" in lines(record, what)[0][header(record, what).index("wrong")]
        assert "not the same" not in cell(row(record, what)["pathaware"])
    assert row(record, "training")["wrong"]["difference"] == pytest.approx(1.0)  # two tasks: twice as long


def test_a_failing_implementation_shows_one_line_and_the_others_are_timed():
    record = measured(ENGINE, Failing())
    entries = row(record, "training")
    assert entries["failing"] == {"error": "ValueError: the first line and another"}
    assert entries["pathaware"]["ms"] > 0
    assert lines(record, "training")[0][4] == "failed: ValueError: the first line and another"


def test_a_library_that_is_not_installed_is_reported(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "higher":
            raise ModuleNotFoundError("No module named 'higher'", name="higher")
        return real(name, *arguments, **options)

    monkeypatch.setattr(importlib, "import_module", lambda name, package=None: without(name))
    record = measured(ENGINE, Higher())
    assert record["contestants"]["higher"] == "not installed"
    assert row(record, "training")["higher"] == {"missing": "not installed"}
    assert cell(row(record, "adaptation")["higher"]) == "not installed"


def test_a_broken_library_is_not_reported_as_not_installed(tmp_path, monkeypatch):
    (tmp_path / "learn2learn").mkdir()
    (tmp_path / "learn2learn" / "__init__.py").write_text("import a_package_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [n for n in sys.modules if n.partition(".")[0] == "learn2learn"]:
        monkeypatch.delitem(sys.modules, name)
    (library,) = implementations(["learn2learn"])
    with pytest.raises(Unavailable, match=r"cannot be imported: .*a_package_nobody_has"):
        library.version()


def test_an_implementation_that_fails_while_timed_is_not_run_again(monkeypatch):
    turns = []

    class Tiring(Wrong):
        def backward(self, *arguments) -> None:
            turns.append(1)
            if len(turns) > 4:  # one check and three to warm up: this is the first of two turns
                raise RuntimeError("tired")

    monkeypatch.setattr(comparison, "MEASUREMENTS", (("training", "second"),))
    monkeypatch.setattr(comparison, "BURST", 0.0)
    entries = row(measured(ENGINE, Tiring()), "training")
    assert entries["wrong"] == {"error": "RuntimeError: tired"}
    assert len(turns) == 5


def test_work_shorter_than_a_burst_is_repeated_and_averaged(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

    def short(i: int) -> None:
        clock[0] += 0.005

    times, _ = in_turns({"short": short}, 2, CPU, burst=0.05)
    assert clock[0] == pytest.approx((1 + 2 * 10) * 0.005)  # once to see how long it takes
    assert times["short"].median == pytest.approx(5)


def test_libraries_are_given_the_same_tasks_as_our_engine(monkeypatch):
    monkeypatch.setattr(comparison, "BURST", 0.0)
    seen = []

    class Watching(Wrong):
        def backward(self, model, episodes, *arguments) -> None:
            seen.append(episodes.support_x.double())

    measured(Watching())
    inputs = Inputs(Job(WAVES, "training", "maml", "second"))
    plans = [inputs.source.gather(inputs.draw(i)).support_x.double() for i in range(2)]
    assert torch.equal(seen[-2], plans[0])
    assert torch.equal(seen[-1], plans[1])
    assert not torch.equal(plans[0], plans[1])


def test_ratios_match_the_times_in_their_row():
    times = {"maml": (2.0, 9.0), "pamela": (3.0, 12.0)}
    record = {
        "device": "cuda",
        "contestants": {"pathaware": "0", "loop": "0", "higher": "not installed"},
        "rows": [
            {
                "row": "r",
                "what": "training",
                "order": "second",
                "method": method,
                "entries": {
                    "pathaware": {"ms": ours, "same": True, "memory_mb": 1234.5},
                    "loop": {"ms": loop, "same": True, "memory_mb": 88.88},
                    "higher": {"missing": "not installed"},
                },
            }
            for method, (ours, loop) in times.items()
        ],
    }
    assert lines(record, "training") == [
        ["r", "second", "maml", "2.00", "9.00", "not installed", "4.50", "–", "–"],
        ["r", "second", "pamela", "3.00", "12.0", "not installed", "4.00", "–", "1.50"],
    ]
    record["rows"][0]["entries"]["higher"] = {"ms": 30.0, "same": True}
    assert lines(record, "training")[0][-3:] == ["4.50", "15.0", "–"]
    assert memory_lines(record)[0] == ["r", "second", "maml", "1,234", "88.9", "–"]
    assert memory_lines({**record, "device": "cpu"}) == []


def test_rows_are_chosen_by_name_group_or_device():
    names = lambda *a, **o: [w.name for w in choose(*a, **o)]  # noqa: E731
    assert names([], CPU) == ["sine", "glyphs"]
    assert names([], torch.device("cuda")) == [w.name for w in WORKLOADS if w.name.startswith("images")]
    assert names(["images-84", "sine"], CPU) == ["sine", "images-84-1shot", "images-84-5shot"]
    assert names(["images-32-5shot"], CPU) == ["images-32-5shot"]
    assert names([], CPU, full=True) == [w.name for w in WORKLOADS]
    with pytest.raises(UsageError, match="full: all rows"):
        choose(["sine"], CPU, full=True)


def test_what_is_timed_is_kept_at_once():
    kept: list[int] = []
    record = bench(
        [WAVES],
        [ENGINE],
        device=CPU,
        precision="fp32",
        repeats=1,
        keep=lambda record: kept.append(len(record["rows"])),
    )
    assert kept == sorted(set(kept))
    assert len(kept) == len(comparison.MEASUREMENTS)
    assert kept[-1] == len(record["rows"])
