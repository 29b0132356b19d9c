"""Measure the error of a meta-gradient in each precision, relative to `loop` in float64.

    python research/pathaware_research/studies/precision.py --json results/other/meta-gradient-h200.json

The workload is PAMELA with a Conv-4 of 64 filters, 32×32, 5-way 5-shot, one task per draw; layer by layer
(`plain`) and with the kernels. Two pixels that tie in one precision and not in another switch a whole
derivative on or off, so single draws differ by orders of magnitude, and medians of many draws are compared.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F

from pathaware import Episodes, MetaLearner, Pamela
from pathaware.engine import kernels
from pathaware.models import conv4
from pathaware.training.config import Training
from pathaware.training.provenance import write_record

Execution = Literal["loop", "batched"]
PRECISIONS: tuple[Literal["fp32", "tf32", "bf16"], ...] = ("fp32", "tf32", "bf16")


def build_learner(seed: int, execution: Execution, dtype: torch.dtype) -> MetaLearner:
    torch.manual_seed(seed)
    model = conv4(5, size=32)
    learner = MetaLearner(model, Pamela(model, 5), F.cross_entropy, execution=execution)
    return learner.to("cuda", dtype)


def random_episodes(seed: int, dtype: torch.dtype) -> Episodes:
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.randn(5, 3, 32, 32, generator=generator)

    def examples(shots: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(5).repeat(shots)
        noise = torch.randn(1, 5 * shots, 3, 32, 32, generator=generator)
        return (prototypes[labels] + noise).to("cuda", dtype), labels[None].cuda()

    return Episodes(*examples(5), *examples(15))


def meta_gradient(seed: int, execution: Execution, dtype: torch.dtype) -> torch.Tensor:
    subject = build_learner(seed, execution, dtype)
    subject.meta_loss(random_episodes(seed, dtype)).backward()
    return torch.cat([p.grad.flatten().double() for p in subject.parameters() if p.grad is not None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--draws", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    errors: dict[str, dict[str, list[float]]] = {p: {"plain": [], "kernels": []} for p in PRECISIONS}
    for seed in range(options.draws):
        exact = meta_gradient(seed, "loop", torch.float64)
        for precision in PRECISIONS:
            Training(precision=precision).apply()
            for name, context in (("plain", kernels.switched_off()), ("kernels", nullcontext())):
                with context:
                    gradient = meta_gradient(seed, "batched", torch.float32)
                errors[precision][name].append(float((gradient - exact).norm() / exact.norm()))
    medians = {p: {k: statistics.median(v) for k, v in each.items()} for p, each in errors.items()}
    for name, each in medians.items():
        print(f"{name}: layer by layer {each['plain']:.1e}, kernels {each['kernels']:.1e}")
    if options.json:
        write_record(options.json, {"median": medians, "each": errors}, field="json")


if __name__ == "__main__":
    main()
