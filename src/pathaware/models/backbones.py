"""Backbones: pretrained networks, their weights from files, and which of their parts adapt.

A backbone comes from a function of yours (`package.module:function`), from timm (`timm:NAME`) or from this
package. Its batch norm uses the running statistics that it brings along. `Adapt` says which parameters adapt
and are meta-trained; the others keep the values of the weights.
"""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.errors import UsageError
from pathaware.core.last_layer import last_linear, replace_last_linear
from pathaware.core.parameters import NORMS
from pathaware.core.reading import must_be_plain
from pathaware.core.settings import is_trusted

Adapt = Literal["all", "head", "last-block", "adapters"]
"""Which parts of a network adapt to a task.

- `all`: every parameter.
- `head`: the last layer. The rest is frozen, so its features are computed once and cached.
- `last-block`: the last block of the body, what follows it, and the last layer.
- `adapters`: a scale and a shift per channel, those of the normalisation layers (FiLM), and the last layer.
"""

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation per channel, of pixels in 0…1."""

IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""The normalisation of networks trained on ImageNet."""

_NESTED = ("state_dict", "model_state_dict", "model", "state_dict_ema")
_SHOWN = 4


class FrozenBackbone(nn.Module):
    """The frozen part of a network. It maps images `[N, C, H, W]` to features `[N, F]`.

    Features that were computed before, `[N, F]`, pass through unchanged, so a learner can be trained on
    images or on cached features.
    """

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body, self.features = body.requires_grad_(False), features

    def train(self, mode: bool = True) -> FrozenBackbone:
        """Stay in evaluation mode: a frozen network has no training behaviour, such as dropout."""
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 2:
            return x
        features: Tensor = self.body(x).flatten(1)
        return features


def folded(network: nn.Module) -> nn.Module:
    """A copy whose convolutions contain the batch norm that follows them, which is faster on a CPU."""
    copied = copy.deepcopy(network)
    for chain in [module for module in copied.modules() if isinstance(module, nn.Sequential)]:
        for (name, first), (after, second) in pairwise(list(chain.named_children())):
            if isinstance(first, nn.Conv2d) and isinstance(second, FrozenBatchNorm):
                chain._modules[name] = fuse_conv_bn_eval(first.eval(), second.to_batch_norm())
                chain._modules[after] = nn.Identity()
    return copied.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


class PreparedInput(nn.Module):
    """The first layer of a network whose input differs from the images of the data set.

    Scales images to `size` × `size` and replaces the normalisation `given` by `wanted`: (mean, std) each.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, size: int, given: Normalisation, wanted: Normalisation) -> None:
        super().__init__()
        self.size = size
        (mean, std), (new_mean, new_std) = (
            (torch.tensor(m).view(-1, 1, 1), torch.tensor(s).view(-1, 1, 1)) for m, s in (given, wanted)
        )
        self.register_buffer("scale", std / new_std, persistent=False)
        self.register_buffer("shift", (mean - new_mean) / new_std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True)
        return x * self.scale + self.shift


def restrict(model: nn.Module, adapt: Adapt) -> nn.Module:
    """Freeze all parameters that do not adapt; return the network, for `head` in two parts."""
    if adapt not in get_args(Adapt):
        raise UsageError(f"adapt: {adapt!r} must be one of {', '.join(get_args(Adapt))}")
    if adapt == "all":
        return model
    head_name, head = last_linear(model)
    if adapt == "head":
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm):
                raise UsageError(
                    f"adapt: head needs batch norm with running statistics, and {name or 'it'} keeps none; "
                    "give weights that have them"
                )
        body = FrozenBackbone(replace_last_linear(model, nn.Identity()), head.in_features)
        fresh = nn.Linear(head.in_features, head.out_features, bias=head.bias is not None)
        return nn.Sequential(OrderedDict(backbone=body, head=fresh))
    names = [name for name, _ in model.named_parameters()]
    if adapt == "adapters":
        norms = [name for name, module in model.named_modules() if isinstance(module, NORMS)]
        chosen = {f"{norm}.{part}" for norm in norms for part in ("weight", "bias")} & set(names)
        if not chosen:
            raise UsageError("adapt: adapters needs normalisation layers with weights; the network has none")
    else:
        block = last_block(model, head_name)
        first = next(i for i, name in enumerate(names) if name.startswith(f"{block}."))
        chosen = set(names[first:])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in chosen or name.startswith(f"{head_name}."))
    return model


def last_block(model: nn.Module, head: str) -> str:
    """The name of the last block of the body: a child with weights, looked for inside chains of blocks."""
    name, module = "", model
    while name == "" or isinstance(module, (nn.Sequential, nn.ModuleList)):
        children = [
            (f"{name}.{child}".lstrip("."), each)
            for child, each in module.named_children()
            if any(p.ndim > 1 for p in each.parameters()) and f"{name}.{child}".lstrip(".") != head
        ]
        if not children:
            raise UsageError(
                "adapt: last-block needs a layer with weights before the last one; there is none"
            )
        name, module = children[-1]
    return name


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read tensors by name from a safetensors file or a PyTorch state dict; no code is executed."""
    try:
        must_be_plain(path)
        if path.suffix == ".safetensors":
            from safetensors import SafetensorError
            from safetensors.torch import load_file

            try:
                found: Any = load_file(path)
            except SafetensorError as error:
                raise UsageError(f"{path} cannot be read ({error})", field="weights") from None
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", field="weights") from None
    except UsageError:
        raise
    except Exception:  # the reader raises many kinds for damaged bytes
        raise UsageError(
            f"{path} is neither a safetensors file nor a PyTorch state dict of plain tensors", field="weights"
        ) from None
    while isinstance(found, Mapping) and (inner := next((k for k in _NESTED if k in found), None)):
        if not isinstance(found[inner], Mapping):
            break
        found = found[inner]
    if not isinstance(found, Mapping):
        raise UsageError(f"{path} holds {type(found).__name__}, not tensors by name", field="weights")
    return {str(name): value for name, value in found.items() if isinstance(value, Tensor)}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy weights into the network, but for its last layer, which separates other classes.

    A prefix that all names of the network have in the file, such as `module.` or `backbone.`, is removed.
    """
    head = f"{last_linear(model)[0]}."
    expected = {name: value for name, value in model.state_dict().items() if not _skipped(name, head)}
    prefix = _prefix(expected, weights, source)
    own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    own = {name: value for name, value in own.items() if not _skipped(name, head)}
    problems = []
    if missing := [name for name in expected if name not in own]:
        problems.append(f"lacks {_listed(missing)}")
    if unexpected := [name for name in own if name not in expected]:
        problems.append(f"has {_listed(unexpected)}, which the network has not")
    wrong = [n for n, value in expected.items() if n in own and own[n].shape != value.shape]
    if wrong:
        shapes = f"{list(own[wrong[0]].shape)} instead of {list(expected[wrong[0]].shape)}"
        problems.append(f"has another shape for {_listed(wrong)} ({shapes})")
    if problems:
        raise UsageError(f"{source} {'; it '.join(problems)}", field="weights")
    model.load_state_dict({**model.state_dict(), **{n: own[n] for n in expected}})


def _skipped(name: str, head: str) -> bool:
    return name.startswith(head) or name.endswith("num_batches_tracked")


def _prefix(expected: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: str) -> str:
    """The prefix without which most names are the network's."""
    candidates = {""} | {
        ".".join(parts[:depth]) + "."
        for parts in (name.split(".") for name in weights)
        for depth in range(1, min(4, len(parts)))
    }
    count = {
        prefix: sum(
            f"{prefix}{n}" in weights and weights[f"{prefix}{n}"].shape == v.shape
            for n, v in expected.items()
        )
        for prefix in candidates
    }
    most = max(count.values(), default=0)
    best = sorted(prefix for prefix, found in count.items() if found == most)
    if most and len(best) > 1:
        raise UsageError(f"{source} has the network several times: {_listed(best)}", field="weights")
    return best[0] if most else ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


TIMM = "timm:"


def timm_model(name: str, ways: int, channels: int, *, pretrained: bool) -> nn.Module:
    """Build the network `timm:NAME`; with `pretrained`, timm downloads its weights."""
    wanted = name.removeprefix(TIMM)
    if not re.fullmatch(r"[\w.-]+", wanted) and not is_trusted("timm"):
        raise UsageError(
            f"model: {name} is looked up in a model hub; if you trust it, set PATHAWARE_TRUST=timm"
        )
    try:
        timm = import_module("timm")
    except ModuleNotFoundError:
        raise UsageError(
            f"model: {name} needs timm, which is not installed; in a clone of pathaware: "
            "pip install '.[timm]'"
        ) from None
    except Exception as error:  # such as a RuntimeError, if its torchvision is of another PyTorch
        raise UsageError(f"model: {name} needs timm, which cannot be imported ({error})") from None
    try:
        model = timm.create_model(wanted, pretrained=pretrained, num_classes=ways, in_chans=channels)
    except Exception as error:  # an unknown name, or a download that failed
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"model: timm cannot build {wanted} ({reason})") from error
    assert isinstance(model, nn.Module)
    return model


def timm_input(model: nn.Module) -> tuple[int, Normalisation]:
    """The side of the images that a network of timm expects, and their (mean, std)."""
    found = import_module("timm.data").resolve_model_data_config(model)
    return int(found["input_size"][-1]), (tuple(found["mean"]), tuple(found["std"]))
