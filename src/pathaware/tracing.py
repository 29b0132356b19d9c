"""Whether a computation is being recorded as a graph of operations, to be compiled."""

from __future__ import annotations

from torch.fx.experimental.proxy_tensor import get_proxy_mode


def tracing() -> bool:
    """True while `make_fx` runs the code: no value of a tensor may decide what happens then."""
    return get_proxy_mode() is not None
