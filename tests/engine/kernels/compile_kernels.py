"""Compile every kernel for an H200, without a GPU: the interpreter accepts much that Triton does not.

    python tests/engine/kernels/compile_kernels.py [float32|bfloat16] [first]

Launches are intercepted, their arguments turned into a signature, and that is compiled; nothing runs. With
`first`, only the first signature of each kernel. Prints the name of each kernel, the bytes of shared memory
that a program of it needs, and its number of warps.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int8: "*i8",
}
VARIANTS = {
    "CONSTANT": "_of_constants",
    "GIVEN": "_of_given",
    "BIAS": "_with_bias",
    "ORDERED": "_of_layers",
    "LATER": "_of_memory",
}
OPTIONS = ("num_warps", "num_stages")
compiled: dict[tuple[str, str], tuple[int, int]] = {}
first_only = "first" in sys.argv[1:]


def compile_instead(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    given = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
    signature = {name: kind_of(given[name], name in kwargs) for name in self.arg_names}
    constants = {(self.arg_names.index(n),): given[n] for n, kind in signature.items() if kind == "constexpr"}
    name = self.__name__ + "".join(suffix for flag, suffix in VARIANTS.items() if given.get(flag))
    key = (name, "" if first_only else str([signature, constants, options]))
    if key not in compiled:
        result = triton.compile(ASTSource(self, signature, constants), target=TARGET, options=options)
        compiled[key] = result.metadata.shared, result.metadata.num_warps


def kind_of(value: Any, named: bool) -> str:
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if named or value == 1:  # Triton turns every 1 into a constant
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32"


def second_derivative(of: Tensor, wanted: list[Tensor]) -> None:
    gradients = torch.autograd.grad(of.float().square().sum(), wanted, create_graph=True)
    torch.autograd.grad(sum(g.float().square().sum() for g in gradients), wanted, allow_unused=True)


def main(dtype: torch.dtype) -> None:
    JITFunction.run = compile_instead
    torch.set_float32_matmul_precision("medium" if dtype == torch.bfloat16 else "high")
    from pathaware import MetaLearner, Pamela
    from pathaware.core.batch_norm import freeze_running_statistics
    from pathaware.engine.kernels import program as programs
    from pathaware.engine.kernels.functions import Convolution, Join, LeakyNorm, Stem, block
    from pathaware.engine.kernels.update import Broadcast, LSTMStep, Update, sum_groups
    from pathaware.methods.warp_grad import warped
    from pathaware.models import conv4
    from pathaware.models.traced import fold_biases

    def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=True)

    full = dtype == torch.float32  # a sample is sufficient for bfloat16
    for tasks in (1, 4) if full else (4,):
        images = torch.zeros(tasks, 25, 3, 16, 16, dtype=dtype)
        weight, gamma, beta = leaf(tasks, 64, 3, 3, 3), leaf(tasks, 64), leaf(tasks, 64)
        second_derivative(Stem.apply(images, weight, gamma, beta, 1e-5), [weight, gamma, beta])
        x, weight = leaf(tasks, 25, 9, 9, 64, dtype=dtype), leaf(tasks, 64, 64, 3, 3)
        second_derivative(block(x, weight, gamma, beta, 1e-5), [x, weight, gamma, beta])
        rule = Pamela(conv4(5, size=32), 2, skip=1)
        point, gradient = leaf(tasks, len(rule.layout)), leaf(tasks, len(rule.layout))
        q, p = Broadcast.apply(rule.q, rule.q_groups), Broadcast.apply(rule.p, rule.p_groups)
        for back, blend in ((None, None), (point, p[0])):
            Update.apply(point, gradient, q[0], back, blend).sum().backward(retain_graph=True)
    for pooling in ("average", "none") if full else ("average",):
        x, weight = leaf(2, 5, 6, 6, 64, dtype=dtype), leaf(2, 48, 48, 3, 3)
        gamma, beta = leaf(2, 48), leaf(2, 48)
        second_derivative(block(x, weight, gamma, beta, 1e-5, pooling), [x, weight, gamma, beta])
    x, weight = leaf(2, 2, 5, 5, 256, dtype=dtype), leaf(2, 256, 256, 3, 3)
    second_derivative(Convolution.apply(x, weight, True)[0], [x, weight])
    gamma, beta, y = leaf(2, 256), leaf(2, 256), leaf(2, 2, 5, 5, 256, dtype=dtype)
    second_derivative(LeakyNorm.apply(x, gamma, beta, 1e-5, 0.1), [x, gamma, beta])
    second_derivative(Join.apply(x, y, 0.1), [x, y])
    if not full:  # the same with constant statistics
        moments = torch.zeros(2, 64)
        images, weight = torch.zeros(4, 25, 3, 16, 16, dtype=dtype), leaf(4, 64, 3, 3, 3)
        gamma, beta = leaf(4, 64), leaf(4, 64)
        second_derivative(Stem.apply(images, weight, gamma, beta, 1e-5, moments), [weight, gamma, beta])
        x, weight = leaf(4, 5, 6, 6, 64, dtype=dtype), leaf(4, 64, 64, 3, 3)
        for pooling in ("max", "average", "none"):
            z = block(x, weight, gamma, beta, 1e-5, pooling, moments)
            second_derivative(z, [x, weight, gamma, beta])
    x, y = torch.zeros(4, 25, 3, 16, 16), torch.zeros(4, 25, dtype=torch.long)
    for constant in (False, True):
        model = conv4(5, size=16)
        if constant:
            fold_biases(freeze_running_statistics(model, all_norms=True))
        learner = MetaLearner(model, Pamela(model, 2), F.cross_entropy)
        program = programs.kernel_program(learner.execution.program)
        assert program is not None
        point = torch.zeros(4, len(learner.rule.layout))
        for storages in ((),) if constant else ((), (torch.float32, torch.bfloat16)):
            programs.PRODUCTS = storages
            _, gradient, saved = program.loss_and_gradient(point, x, y)
            program.hvp(point, gradient, saved)
        program.losses(point, x, y)
    model = warped(conv4(5, size=16))
    program = programs.kernel_program(MetaLearner(model, Pamela(model, 2), F.cross_entropy).execution.program)
    assert program is not None
    point = torch.zeros(4, len(program.layout))
    outputs, saved = program.outputs(point, x)
    gradient = program.pull(point, outputs, saved)
    along, tangents = program.push(point, gradient, saved)
    program.pull_tangent(point, gradient, saved, tangents, along)
    sum_groups(point, torch.tensor([0, 5, len(program.layout)]))
    memory = [leaf(4, units, 1000) for units in (20, 20, 2)]
    weights = leaf(4, 4, 32, 32), leaf(2, 32)
    after = LSTMStep.apply(leaf(4, 1000), torch.zeros(4, 1000), *memory, *weights, 10.0)
    for of in (after[0], sum(each.sum() for each in after)):
        of.sum().backward(retain_graph=True)
    for (name, _), needs in compiled.items():
        print(name, *needs)


if __name__ == "__main__":
    main(getattr(torch, sys.argv[1] if len(sys.argv) > 1 else "float32"))
