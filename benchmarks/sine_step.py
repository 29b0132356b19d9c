"""One sine meta-iteration beside `higher`, in one run and on the same tasks.

    python benchmarks/sine_step.py [--compile] [--json results/sine-step.json]

25 tasks, 10 points, 5 inner steps, second order, one thread. Both compute the same meta-gradient, which
is checked before anything is timed. The times are medians, taken in turns so that both meet the same noise;
a turn is some iterations in a row, as training has them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from pathaware import Episodes, GradientDescent, MetaLearner, Pamela
from pathaware.models import mlp
from pathaware.outer.compiled import CompiledUnrolled
from pathaware.report.environment import environment
from pathaware.seeding import generator
from pathaware.tasks.sine import SineWaves

STEPS, RATE = 5, 0.01
IN_A_ROW = 20


def with_higher(model: torch.nn.Module, episodes: Episodes) -> None:
    import higher

    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for support_x, support_y, query_x, query_y in zip(*episodes.tensors(), strict=True):
        with higher.innerloop_ctx(model, optimizer, copy_initial_weights=False) as (fast, descend):
            for _ in range(STEPS):
                descend.step(F.mse_loss(fast(support_x), support_y))
            (F.mse_loss(fast(query_x), query_y) / len(episodes)).backward()


def discard(value: object) -> None:
    """For work that returns something."""


def gradient(model: torch.nn.Module, work: Callable[[], None]) -> torch.Tensor:
    model.zero_grad()
    work()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="time the compiled iteration too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = mlp()
    episodes = SineWaves(10).sample(25, generator(0, "benchmark"))
    maml = MetaLearner(model, GradientDescent(model, STEPS, rate=RATE), F.mse_loss)
    pamela = MetaLearner(model, Pamela(model, STEPS, rate=RATE), F.mse_loss)
    loop = MetaLearner(model, GradientDescent(model, STEPS, rate=RATE), F.mse_loss, execution="loop")
    work: dict[str, Callable[[], None]] = {
        "higher, MAML": lambda: with_higher(model, episodes),
        "pathaware, MAML, one task after another": lambda: loop.meta_loss(episodes).backward(),
        "pathaware, MAML": lambda: maml.meta_loss(episodes).backward(),
        "pathaware, PAMELA": lambda: pamela.meta_loss(episodes).backward(),
    }
    compile_seconds = 0.0
    if options.compile:
        compiled = CompiledUnrolled()
        work["pathaware, MAML, compiled"] = lambda: discard(
            compiled.backward(maml, episodes, 1 / len(episodes))
        )
        start = time.perf_counter()
        ours, again = (
            gradient(model, work[name]) for name in ("pathaware, MAML", "pathaware, MAML, compiled")
        )
        compile_seconds = time.perf_counter() - start
        assert float((again - ours).norm() / ours.norm()) < 1e-4, "the compiled meta-gradient differs"
        print(f"compiled in {compile_seconds:.0f} s")
    theirs, ours = (gradient(model, work[name]) for name in ("higher, MAML", "pathaware, MAML"))
    error = float((ours - theirs).norm() / theirs.norm())
    assert error < 1e-4, f"the two meta-gradients differ by {error:.1e}"

    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(options.repeats):
        for name, run in work.items():
            for _ in range(IN_A_ROW):
                start = time.perf_counter()
                run()
                times[name].append(1e3 * (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:42s} {value:8.2f} ms   {medians['higher, MAML'] / value:5.1f} ×")
    if options.json:
        result = {"milliseconds": medians, "gradient_difference": error, "environment": environment()}
        if options.compile:
            result["compile_seconds"] = compile_seconds
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
