"""A network as a function of one task's point, mapped over tasks: `loop` and `vmap`.

Every call runs the module itself, with operations that have second derivatives.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import check_outputs
from pathaware.core.last_layer import last_linear
from pathaware.core.parameters import CallWithParameters, Layout, parameters_lock

Forward = Callable[[Tensor, Any], Tensor]

_REQUIRES_GRAD: Any = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
_plain_attention: Any = torch.ops.aten._scaled_dot_product_attention_math.default


class CorrectedOperations(TorchFunctionMode):
    """A context for code that may use operations which would be differentiated wrongly, or not at all.

    - Attention: PyTorch's fused kernels, also those of whole layers of a transformer in evaluation mode, have
      no second derivatives.
    - Embeddings with `padding_idx`: in `vmap`, padding would get a gradient.
    - `Tensor.requires_grad`: in `vmap`, it would be False.
    - Checkpoints: the recomputation would see the parameters of the network itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.saving = _saving()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if (saving := _saving()) is not self.saving and _is_checkpoint(saving):
            raise UsageError(
                "it uses torch.utils.checkpoint, which would compute again with other parameters; build the "
                "learner with checkpoint=True instead",
                field="model",
            )
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.multi_head_attention_forward and not kwargs.get("need_weights", True):
            # with weights, which need not be returned, it does not call a fused kernel
            return func(*args, **{**kwargs, "need_weights": True})[0], None
        if func is F.embedding:
            return _embedding(*args, **kwargs)
        if func == _REQUIRES_GRAD:
            return _requires_grad(args[0])
        return func(*args, **kwargs)


def _saving() -> Any:
    """The function through which autograd saves tensors now, if there is one."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return None if hooks is None else hooks[0]


def _is_checkpoint(saving: Any) -> bool:
    return getattr(saving, "__module__", "") == "torch.utils.checkpoint"


def _embedding(
    x: Tensor, weight: Tensor, padding_idx: int | None = None, *args: Any, **options: Any
) -> Tensor:
    if padding_idx is not None:
        rows = torch.arange(len(weight), device=weight.device).unsqueeze(1)
        weight = torch.where(rows == padding_idx % len(weight), weight.detach(), weight)
    return F.embedding(x, weight, None, *args, **options)


def _requires_grad(x: Tensor) -> bool:
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.requires_grad


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **options: Any
) -> Tensor:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    outputs: Tensor = _plain_attention(query, key, value, attn_mask, *args, **options)[0]
    return outputs


class _Network(CallWithParameters):
    """Calls a network in the context `CorrectedOperations`, unless it consists of layers that need none."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.corrected = not all(_is_plain(module) for module in model.modules())

    def __call__(self, values: dict[str, Tensor], *inputs: Tensor) -> Any:
        with CorrectedOperations() if self.corrected else nullcontext():
            return super().__call__(values, *inputs)


def _is_plain(module: nn.Module) -> bool:
    """True for a layer of PyTorch, without custom code, that uses no operation to be corrected."""
    own = type(module).__module__.startswith("torch.nn.modules.") and "forward" not in vars(module)
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return own and not hooks and not isinstance(module, (nn.MultiheadAttention, nn.Embedding))


def outputs_of_task(model: nn.Module, layout: Layout) -> Forward:
    """The network at the point of one task, `[D]`, for inputs `[N, …]`."""

    call = _Network(model)

    def one(point: Tensor, inputs: Tensor) -> Tensor:
        return check_outputs(call(layout.views(point), inputs))

    return one


def refuse_direct_reads(model: nn.Module, layout: Layout, point: Tensor, outputs: Tensor) -> None:
    """Raise if outputs at a point depend on an adapted parameter by another way than the point.

    That is, if the network's code reads the parameter from a list, say, where the point cannot replace it.
    """
    with parameters_lock(model):
        parameters = dict(model.named_parameters())
    adapted = {id(parameters[entry.name]): entry.name for entry in layout.entries}
    found, seen = [outputs.grad_fn], {None, point.grad_fn}
    while found:
        node = found.pop()
        if node in seen:
            continue
        seen.add(node)
        if name := adapted.get(id(getattr(node, "variable", None))):
            raise UsageError(
                f"its code reads {name} other than as an attribute, so that it would not adapt; use "
                f"self.{name.rpartition('.')[2]}, or nn.ParameterList in place of a list",
                field="model",
            )
        found.extend(following for following, _ in node.next_functions)  # type: ignore[union-attr]


def features_of_task(model: nn.Module, layout: Layout) -> Forward:
    """The inputs `[N, F]` of the last linear layer at the point of one task."""

    call = _Network(model)

    def one(point: Tensor, inputs: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def see(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            seen.append(arguments[0].flatten(1))

        with parameters_lock(model):
            hook = last_linear(model)[1].register_forward_pre_hook(see)
            try:
                call(layout.views(point), inputs)
            finally:
                hook.remove()
        return seen[0]

    return one


class Loop:
    """One task after another."""

    one_by_one = True

    def __init__(self, one: Forward) -> None:
        self.one = one

    def __call__(self, point: Tensor, inputs: Tensor) -> Tensor:
        return torch.stack([self.one(p, x) for p, x in zip(point, inputs, strict=True)])


def map_tasks(one: Forward) -> Forward:
    """Map the forward pass only. Gradients are taken outside: inside `vmap`, second derivatives of affine
    batch norm are wrong by some per cent, silently."""
    mapped: Forward = vmap(one, randomness="different")
    return mapped


class MapOrLoop:
    """`vmap`; falls back to `Loop` for good when the model does something that `vmap` cannot map.

    Keeping tensors of the forward pass is such a case, if a loss may read them from this `read` model.
    """

    def __init__(self, one: Forward, read: nn.Module | None = None) -> None:
        self.mapped, self.looped, self.read = map_tasks(one), Loop(one), read
        self.chosen: Forward | None = None

    @property
    def one_by_one(self) -> bool:
        return self.chosen is self.looped

    def __call__(self, point: Tensor, inputs: Tensor) -> Tensor:
        if self.chosen is not None:
            return self.chosen(point, inputs)
        try:
            outputs = self.mapped(point, inputs)
            reason = None if self.read is None else _keeps_tensors(self.read)
        except (RuntimeError, ValueError) as error:
            reason = str(error).split("\n")[0]
        self.chosen = self.mapped
        if reason is not None:
            outputs = self.looped(point, inputs)  # raises again if the error is the model's own
            warnings.warn(f"vmap cannot run this model; tasks run one after another: {reason}", stacklevel=2)
            self.chosen = self.looped
        return outputs


def _keeps_tensors(model: nn.Module) -> str | None:
    """Name an attribute of the network with tensors of a `vmap` that has ended, which nothing can use."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            values = value if isinstance(value, (list, tuple)) else [value]
            if any(isinstance(v, Tensor) and torch._C._functorch.is_batchedtensor(v) for v in values):
                return f"it keeps tensors of its forward pass in {f'{prefix}.{name}'.lstrip('.')}"
    return None
