"""How processes find each other after a restart.

torchrun keeps one store for all its attempts, and what a dead process wrote there is still to be read: its
address, or NCCL's identifier. Whoever reads that waits for a process that is no more. So the processes of an
attempt first agree on a name that only they can know, and put everything else under it.
"""

from __future__ import annotations

import time
import uuid

from torch.distributed.distributed_c10d import Store

PATIENCE = 1800.0
"""Seconds that the first waits for the others, as long as PyTorch's own stores do."""


def meet(store: Store, rank: int, size: int) -> str:
    """A name for this attempt, the same in all of its processes and never used before.

    Each says a word of its own and waits for the answer to that very word, which no earlier attempt can have
    left. The first answers whatever it hears, old words too, until everyone has confirmed its name.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"word/{rank}", own)
        name = store.get(f"answer/{own}").decode()
        store.set(f"confirmed/{name}/{rank}", "")
        return name
    missing = set(range(1, size))
    ends = time.monotonic() + PATIENCE
    while missing:
        for other in sorted(missing):
            if store.check([f"confirmed/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"word/{other}"]):
                store.set(f"answer/{store.get(f'word/{other}').decode()}", own)
        if time.monotonic() > ends:
            raise TimeoutError(f"processes {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(0.01)
    return own
