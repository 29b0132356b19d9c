"""The query losses after a whole path of a ReLU network, and their meta-gradient, as one program.

With a small network most of the time is spent in calling operations. So nothing is allocated or reshaped
along the path: every result has its place in a workspace, which the next meta-iteration uses again, and
autograd sees a single node. The reverse sweep is written out. With n steps

    θⱼ₊₁ = (1 − Pⱼ)(θⱼ − Qⱼ ∘ ∇L(θⱼ)) + Pⱼ ∘ θₖ

and vⱼ the derivative of the query loss with respect to θⱼ, uⱼ = (1 − Pⱼ) ∘ vⱼ₊₁,

    vⱼ = uⱼ − ∇²L(θⱼ) (Qⱼ ∘ uⱼ)        ∂Qⱼ = −Σ uⱼ ∘ ∇L(θⱼ)
    vₖ += Pⱼ ∘ vⱼ₊₁                    ∂Pⱼ = Σ vⱼ₊₁ ∘ (θₖ − θⱼ + Qⱼ ∘ ∇L(θⱼ))

with sums over tasks. First order leaves out the Hessian.

A layer computes [x 1] A for its inputs x, where A is the transposed weight matrix with the bias as its last
row. A vector in parameter space holds the matrices of all T tasks for the first layer, then those for the
second, and so on, because a batch of matrix products writes to memory without gaps only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.path import Order, differentiable_once, divergence_bound
from pathaware.core.rule import LinearSteps
from pathaware.engine.handwritten.layers import HandwrittenLoss, Linear, ReLU, Saved
from pathaware.engine.handwritten.program import Program

KEPT = 8
"""Shapes for which workspaces are kept."""

_threshold_backward: Any = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True)
class Size:
    """The number of inputs of a layer, and the rows and columns of its matrix A."""

    inputs: int
    rows: int
    columns: int


@dataclass(frozen=True)
class PathShape:
    """The sizes of a path's memory: numbers of tasks, support and query examples, steps and skips; whether
    one `constant` step size serves all, and derivatives are of `second` order."""

    tasks: int
    support: int
    query: int
    steps: int
    skips: int
    constant: bool
    second: bool
    dtype: torch.dtype


def path_program(program: Program) -> PathProgram | None:
    """The program of whole paths, or None if the network is not a chain Linear, ReLU, Linear, …, Linear."""
    if len(program.layers) % 2 == 0:
        return None
    known = all(type(layer) is (ReLU if i % 2 else Linear) for i, layer in enumerate(program.layers))
    return PathProgram(program) if known else None


class PathProgram:
    """Runs whole paths of a ReLU network."""

    def __init__(self, program: Program) -> None:
        self.loss = program.loss
        entries = program.layout.entries
        indices = torch.arange(len(program.layout)).split(program.layout.sizes)
        places = {entry.name: i.view(entry.shape) for entry, i in zip(entries, indices, strict=True)}
        matrices = []
        self.sizes: list[Size] = []
        for link in program.links[::2]:
            weight = places[link.names["weight"]].T
            bias = [places[link.names["bias"]][None]] if "bias" in link.names else []
            matrices.append(torch.cat([weight, *bias]))
            self.sizes.append(Size(len(weight), *matrices[-1].shape))
        self.order = torch.cat([matrix.flatten() for matrix in matrices])
        """Where each entry of the matrices lies in the flat vector."""
        self.back = self.order.argsort()
        self.free: dict[PathShape, list[_Workspace]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "free": {}}  # a copy has memory of its own

    def supports(self, theta: Tensor, episodes: Episodes) -> bool:
        """True if paths for these tasks can run here, and derivatives are needed for parameters only."""
        tensors = episodes.tensors()
        return (
            not theta.is_cuda
            and not any(tensor.requires_grad for tensor in tensors)
            and all(x.ndim == 3 and x.dtype == theta.dtype for x in tensors[::2])
            and all(x.shape[2] == self.sizes[0].inputs for x in tensors[::2])
            and all(self.loss.supports(y) for y in tensors[1::2])
        )

    def losses(
        self, theta: Tensor, steps: LinearSteps, episodes: Episodes, order: Order, *, guard: bool
    ) -> Tensor | None:
        """Query losses `[T]` at the end of the path from θ₀ `[D]`, differentiable once in θ₀, Q and P.

        None if the loss or the gradient at θ₀ is not finite, and the guard is to stop a task at once.
        """
        tasks, support = episodes.support_x.shape[:2]
        q = steps.q if isinstance(steps.q, Tensor) else None
        second, query = order == "second", episodes.query_x.shape[1]
        counts = tasks, support, query, steps.count, len(steps.skips)
        shape = PathShape(*counts, q is None, second, theta.dtype)
        if shape not in self.free and len(self.free) == KEPT:
            self.free.clear()
        free = self.free.setdefault(shape, [])
        with torch.inference_mode():
            lease = _Lease(free.pop() if free else _Workspace(self, shape), free)
            found = lease.workspace.run(theta, steps, episodes, guard)
        if found is None:
            return None
        losses: Tensor = _Losses.apply(theta, q, steps.p, found.clone(), lease)
        return losses


class _Lease:
    """A workspace that becomes free when autograd's node of the path is deleted."""

    def __init__(self, workspace: _Workspace, free: list[_Workspace]) -> None:
        self.workspace, self.free = workspace, free

    def __del__(self) -> None:
        self.free.append(self.workspace)


class _Losses(torch.autograd.Function):
    """Losses after a path, as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, q: Tensor | None, p: Tensor | None, losses: Tensor, lease: _Lease
    ) -> Tensor:
        ctx.lease = lease
        return losses

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, to_losses: Tensor) -> Any:
        with torch.inference_mode():
            gradients = ctx.lease.workspace.reverse(to_losses)
        return *(None if each is None else each.clone() for each in gradients), None, None


class _Vector:
    """A vector in parameter space for each task, and the views of it that operations need."""

    def __init__(self, tasks: int, sizes: list[Size], dtype: torch.dtype) -> None:
        counts = [tasks * size.rows * size.columns for size in sizes]
        self.flat = torch.empty(sum(counts), dtype=dtype)
        parts = list(zip(self.flat.split(counts), sizes, strict=True))
        self.matrices = [part.view(tasks, size.rows, size.columns) for part, size in parts]
        """A of each layer, `[T, rows, columns]`."""
        # A single column is much faster as a transposed row.
        self.right = [
            part.view(tasks, 1, size.rows).mT if size.columns == 1 else matrix
            for matrix, (part, size) in zip(self.matrices, parts, strict=True)
        ]
        """The same, as the right operand of a matrix product."""
        self.result = [right.mT if right.shape[2] == 1 else right for right in self.right]
        """The same, as the result of one: `[T, 1, rows]` for a single column."""
        self.weight = [matrix[:, : size.inputs].mT for matrix, size in zip(self.matrices, sizes, strict=True)]
        """Weights as `nn.Linear` has them, `[T, columns, inputs]`."""


class _Rows:
    """Activations of one set of examples, N per task, at one point; `fill` multiplies the bias."""

    def __init__(self, shape: tuple[int, int], sizes: list[Size], dtype: torch.dtype, fill: float) -> None:
        self.x = [torch.full((*shape, size.rows), fill, dtype=dtype) for size in sizes]
        """[x 1] of each layer."""
        self.z = [torch.empty(*shape, size.columns, dtype=dtype) for size in sizes]
        """The outputs of each layer; later, of the backward pass before ReLU."""
        self.g = [torch.empty_like(z) for z in self.z]
        """The gradient with respect to the outputs of each layer."""
        self.inputs = [x[..., : size.inputs] for x, size in zip(self.x, sizes, strict=True)]
        self.turned = [x.mT for x in self.x]

    def share_inputs(self, other: _Rows) -> _Rows:
        """Read the first layer's inputs from other rows."""
        self.x[0], self.inputs[0], self.turned[0] = other.x[0], other.inputs[0], other.turned[0]
        return self


class _Workspace:
    """The memory of one path of T tasks, and the passes that fill it."""

    def __init__(self, program: PathProgram, shape: PathShape) -> None:
        self.program, self.shape, self.count = program, shape, shape.steps
        self.loss: HandwrittenLoss = program.loss
        self.sizes = sizes = program.sizes
        self.layers = range(len(sizes))
        tasks, steps, dtype = shape.tasks, shape.steps, shape.dtype

        def vectors(number: int) -> list[_Vector]:
            return [_Vector(tasks, sizes, dtype) for _ in range(number)]

        def rows(fill: float = 1) -> _Rows:
            return _Rows((tasks, shape.support), sizes, dtype, fill)

        self.points = vectors(steps + 1)
        # With a constant step size gradients share one place, which then stays in the processor's cache.
        self.gradients = vectors(1) * steps if shape.constant else vectors(steps)
        self.differences, self.skipped = vectors(shape.skips), vectors(shape.skips)
        self.v, self.direction, self.chosen = vectors(3)
        first = rows()
        self.rows = [first, *(rows().share_inputs(first) if shape.second else first for _ in range(steps))]
        self.saved: list[Saved] = [[] for _ in range(steps)]
        self.tangent = rows(0)
        self.query = _Rows((tasks, shape.query), sizes, dtype, 1)
        self.outputs = [torch.empty_like(first.z[-1]) for _ in self.points]
        self.losses = torch.empty(steps + 1, tasks, dtype=dtype)
        counts = (1, 0 if shape.constant else steps, shape.skips)
        self.sums = [torch.empty(count, len(program.order), dtype=dtype) for count in counts]
        """Derivatives with respect to θ₀, Q and P, in the order of the matrices."""

    def run(self, theta: Tensor, steps: LinearSteps, episodes: Episodes, guard: bool) -> Tensor | None:
        """Follow the path; return the query losses at its end, None if not all tasks can start."""
        self.skips, self.targets, count = steps.skips, episodes.support_y, self.count
        self.rate = 1.0 if isinstance(steps.q, Tensor) else steps.q
        self.q = self._by_layer(steps.q) if isinstance(steps.q, Tensor) else []
        self.p = [] if steps.p is None else self._by_layer(steps.p)
        for matrix, values in zip(self.points[0].matrices, self._by_layer(theta[None])[0], strict=True):
            matrix.copy_(values)
        self.rows[0].inputs[0].copy_(episodes.support_x)
        self.query.inputs[0].copy_(episodes.query_x)
        for j in range(count):
            self._gradient(j)
            if j == 0 and guard and not torch.linalg.vector_norm(self.gradients[0].flat).isfinite():
                return None
            self._step(j)
        self.end, self.finite = self.points[count], True
        self.reverted: dict[int, int] = {}
        if guard:
            self._forward(self.end, self.rows[count], self.outputs[count])
            self._support_losses()
            if not bool(self.losses[0].isfinite().all()):
                return None
            self._revert()
        self._forward(self.end, self.query, self.query.z[-1])
        losses, self.query_gradient, _ = self.loss.loss_and_gradient(self.query.z[-1], episodes.query_y)
        return losses

    def reverse(self, to_losses: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The derivatives with respect to θ₀, Q and P, for that with respect to the query losses."""
        v, skips = self.v, self.skips
        self._backward(self.end, self.query, self.query_gradient * to_losses.view(-1, 1, 1), v)
        ends = {t: [matrix[t].clone() for matrix in v.matrices] for t in self.reverted}
        self._set_reverted(self.count, ends)
        pending: dict[int, list[_Vector]] = {}
        for j in reversed(range(self.count)):
            if j in skips:
                row, earlier = skips[j]
                self._sum_product(v, self.differences[row], self.sums[2][row])
                skipped = self._scaled(v, self.p[row], self.skipped[row])
                pending.setdefault(earlier, []).append(skipped)
                v.flat.sub_(skipped.flat)
            if self.q:
                self._sum_product(v, self.gradients[j], self.sums[1][j])
            if self.shape.second:
                direction = self._scaled(v, self.q[min(j, len(self.q) - 1)], self.direction) if self.q else v
                self._subtract_hvp(j, direction)
            for skipped in pending.get(j, ()):
                v.flat.add_(skipped.flat)
            self._set_reverted(j, ends)
        self._sum(v, self.sums[0][0])
        theta, of_q, of_p = (each.index_select(1, self.program.back) for each in self.sums)
        of_q = of_q.neg_() if len(self.q) > 1 else of_q.sum(0, keepdim=True).neg_()
        return theta[0], of_q if self.q else None, of_p if self.p else None

    def _gradient(self, j: int) -> None:
        """Write the outputs for the support set at θⱼ and the gradient there."""
        self._forward(self.points[j], self.rows[j], self.outputs[j])
        g, self.saved[j] = self.loss.gradient(self.outputs[j], self.targets)
        self._backward(self.points[j], self.rows[j], g, self.gradients[j])

    def _forward(self, point: _Vector, rows: _Rows, outputs: Tensor) -> None:
        for i in self.layers[:-1]:
            torch.bmm(rows.x[i], point.right[i], out=rows.z[i])
            torch.clamp_min(rows.z[i], 0, out=rows.inputs[i + 1])
        torch.bmm(rows.x[-1], point.right[-1], out=outputs)

    def _backward(self, point: _Vector, rows: _Rows, g: Tensor, gradient: _Vector) -> None:
        """Write the gradient, for the gradient g of the outputs; keep those of all layers' outputs."""
        rows.g[-1] = g
        for i in reversed(self.layers):
            torch.bmm(*_factors(rows, i, rows.g[i]), out=gradient.result[i])
            if i > 0:
                _input_gradient(rows.g[i], point.weight[i], rows.z[i - 1])
                _threshold_backward(rows.z[i - 1], rows.inputs[i], 0, grad_input=rows.g[i - 1])

    def _subtract_hvp(self, j: int, direction: _Vector) -> None:
        """Subtract the product of the Hessian at θⱼ with the direction from v, times the constant step size.

        The direction may be v itself: a layer's part of it is not read again once it is changed.
        """
        point, rows, tangent, v = self.points[j], self.rows[j], self.tangent, self.v
        for i in self.layers:
            dz = torch.bmm(rows.x[i], direction.right[i], out=tangent.z[i])
            if i > 0:
                dz.baddbmm_(tangent.x[i], point.right[i])
            if i < self.layers[-1]:
                _threshold_backward(dz, rows.inputs[i + 1], 0, grad_input=tangent.inputs[i + 1])
        tangent.g[-1] = self.loss.hvp(self.saved[j], dz)
        for i in reversed(self.layers):
            g, dg = rows.g[i], tangent.g[i]
            if i > 0:
                dz = _input_gradient(dg, point.weight[i], tangent.z[i - 1])
                if g.shape[2] == 1:
                    dz.addcmul_(g, direction.weight[i])
                else:
                    dz.baddbmm_(g, direction.weight[i])
                _threshold_backward(dz, rows.inputs[i], 0, grad_input=tangent.g[i - 1])
                v.result[i].baddbmm_(*_factors(tangent, i, g), alpha=-self.rate)
            v.result[i].baddbmm_(*_factors(rows, i, dg), alpha=-self.rate)

    def _step(self, j: int) -> None:
        """Write the point that follows θⱼ."""
        point, gradient, following = self.points[j], self.gradients[j], self.points[j + 1]
        if not self.q:
            torch.add(point.flat, gradient.flat, alpha=-self.rate, out=following.flat)
        else:
            q = self.q[min(j, len(self.q) - 1)]
            for i in self.layers:
                before, after = point.matrices[i], following.matrices[i]
                torch.addcmul(before, q[i], gradient.matrices[i], value=-1, out=after)
        if j in self.skips:
            row, earlier = self.skips[j]
            difference = self.differences[row]
            torch.sub(self.points[earlier].flat, following.flat, out=difference.flat)
            for i in self.layers:
                following.matrices[i].addcmul_(self.p[row][i], difference.matrices[i])

    def _support_losses(self) -> None:
        """Write the support losses at all points."""
        everywhere = torch.stack(self.outputs).flatten(0, 1)
        targets = self.targets.expand(len(self.outputs), *self.targets.shape).flatten(0, 1)
        self.losses.copy_(self.loss.losses(everywhere, targets).view(self.losses.shape))

    def _revert(self) -> None:
        """Find the tasks that the guard reverts, and the point where each of them ends, as `unroll` and
        `Trajectory.guarded` do.

        Here a task that has diverged continues, but none of its later points is used.
        """
        losses, bound = self.losses, divergence_bound(self.losses[0])
        diverged = ~(losses[1:-1] <= bound)  # True for NaN
        if bool(diverged.any()):
            since = torch.cat([diverged, diverged[-1:]]).cumsum(0) > 0
            losses[1:].masked_fill_(since, torch.inf)
            # what is not finite makes all that follows so
            self.finite = bool(torch.linalg.vector_norm(self.gradients[-1].flat).isfinite())
        kept = losses[-1] <= losses[0]
        if bool(kept.all()):
            return
        best = losses.nan_to_num(nan=torch.inf).argmin(0)
        self.reverted = {t: int(best[t]) for t in (~kept).nonzero().flatten().tolist()}
        self.end = self.chosen
        self.chosen.flat.copy_(self.points[-1].flat)
        for t, j in self.reverted.items():
            for matrix, other in zip(self.chosen.matrices, self.points[j].matrices, strict=True):
                matrix[t] = other[t]
            if not self.finite:
                unused = [
                    *self.gradients[j:],
                    *(self.differences[row] for i, (row, _) in self.skips.items() if i >= j),
                ]
                for matrix in [matrix for vector in unused for matrix in vector.matrices]:
                    matrix[t] = 0  # times zero it would be NaN

    def _set_reverted(self, j: int, ends: dict[int, list[Tensor]]) -> None:
        """Set the derivatives with respect to θⱼ of tasks that end there, or end earlier, which are zero."""
        for t, end in self.reverted.items():
            for matrix, values in zip(self.v.matrices, ends[t], strict=True):
                if end == j:
                    matrix[t] = values
                elif end < j and (j == self.count or not self.finite):
                    matrix[t] = 0

    def _scaled(self, v: _Vector, coefficients: list[Tensor], result: _Vector) -> _Vector:
        for i in self.layers:
            torch.mul(v.matrices[i], coefficients[i], out=result.matrices[i])
        return result

    def _by_layer(self, coefficients: Tensor) -> list[list[Tensor]]:
        """Coefficients `[n, D]` as the matrix of each layer, for each of n steps."""
        ordered = coefficients.detach().index_select(1, self.program.order)
        counts = [size.rows * size.columns for size in self.sizes]
        parts = zip(ordered.split(counts, dim=1), self.sizes, strict=True)
        by_layer = [part.unflatten(1, (size.rows, size.columns)).unbind() for part, size in parts]
        return [list(step) for step in zip(*by_layer, strict=True)]

    def _sum(self, v: _Vector, result: Tensor) -> None:
        """Write the sum over tasks, the matrices one after another, `[D]`."""
        parts = result.split_with_sizes([size.rows * size.columns for size in self.sizes])
        for matrix, part in zip(v.matrices, parts, strict=True):
            torch.sum(matrix.flatten(1), 0, out=part)

    def _sum_product(self, v: _Vector, other: _Vector, result: Tensor) -> None:
        torch.mul(v.flat, other.flat, out=self.direction.flat)
        self._sum(self.direction, result)


def _input_gradient(g: Tensor, weight: Tensor, result: Tensor) -> Tensor:
    multiply = torch.mul if g.shape[2] == 1 else torch.bmm  # of single numbers with a row
    found: Tensor = multiply(g, weight, out=result)
    return found


def _factors(rows: _Rows, i: int, g: Tensor) -> tuple[Tensor, Tensor]:
    """The two matrices whose product is the gradient of A in layer i; a single column is a row."""
    return (g.mT, rows.x[i]) if g.shape[2] == 1 else (rows.turned[i], g)
