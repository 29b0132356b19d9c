"""Fast execution of adaptation, with the results of a plain loop over tasks. The package is optional.

`batched_execution` lowers every layer to one operation for all tasks. `handwritten` adds derivatives for
CPUs, `kernels` Triton kernels for CUDA; both find conv blocks with `pathaware.models.traced`. `compiled` and
`cuda_graph` speed up a whole meta-iteration. All of it is reached through `ENGINE`, which
`pathaware.core.execution.engine` loads; without it the reference in `core.execution` runs.
"""

from pathaware.core.execution import Engine
from pathaware.engine import kernels
from pathaware.engine.batched_execution import batched_execution, fused_embedding
from pathaware.engine.compiled import CompiledUnrolled, has_compiler
from pathaware.engine.cuda_graph import CapturedStep


class _Engine:
    """See `Engine` for what each of these does."""

    execution = staticmethod(batched_execution)
    embedding = staticmethod(fused_embedding)
    operation = staticmethod(kernels.operation)
    captured = staticmethod(CapturedStep)
    compiled = staticmethod(CompiledUnrolled)
    has_compiler = staticmethod(has_compiler)


ENGINE: Engine = _Engine()

__all__ = ["ENGINE"]
