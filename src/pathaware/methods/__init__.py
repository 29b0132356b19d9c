"""The methods by name, one a file.

A new method is a file that defines a `METHOD`, and a line here; or, outside of this package, a `Method` that
is named as `package.module:METHOD`.
"""

from __future__ import annotations

from pathaware.errors import UsageError
from pathaware.methods import (
    alfa,
    anil,
    boil,
    core,
    gap,
    hsml,
    imaml,
    l2f,
    l_maml,
    lr_d2,
    maml_plus_plus,
    mann,
    matching,
    meta_curvature,
    meta_lstm,
    metal,
    mt_net,
    prototypical,
    r2d2,
    relation,
    siamese,
    warp_grad,
)
from pathaware.methods.base import Method
from pathaware.own_code import imported

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        core.MAML,
        core.FOMAML,
        core.REPTILE,
        core.META_SGD,
        core.PAMELA,
        maml_plus_plus.METHOD,
        anil.METHOD,
        boil.METHOD,
        meta_curvature.METHOD,
        mt_net.METHOD,
        warp_grad.METHOD,
        imaml.METHOD,
        meta_lstm.METHOD,
        l_maml.METHOD,
        hsml.METHOD,
        l2f.METHOD,
        alfa.METHOD,
        metal.METHOD,
        gap.METHOD,
        r2d2.METHOD,
        lr_d2.METHOD,
        prototypical.METHOD,
        matching.METHOD,
        relation.METHOD,
        siamese.METHOD,
        mann.METHOD,
    )
}


def method(name: str) -> Method:
    """One of `METHODS`, or your own as `package.module:METHOD`."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise UsageError(f"method: {name!r} is none of {', '.join(METHODS)}, nor package.module:METHOD")
    found = imported("method", name)
    if not isinstance(found, Method):
        raise UsageError(f"method: {name} is {type(found).__name__}, not a pathaware.methods.Method")
    return found


__all__ = ["METHODS", "Method", "method"]
