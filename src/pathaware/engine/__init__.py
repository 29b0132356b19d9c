"""Fast execution of adaptation, with the results of a plain loop over tasks.

`execution` runs a network at the points of T tasks and chooses how: `loop` and `vmap`, see `task_mapping`, or
`batched`, which lowers every layer to one operation for all tasks. `handwritten` adds derivatives for CPUs,
`kernels` Triton kernels for CUDA; both find conv blocks with `traced`. `compiled` and `cuda_graph` speed up a
whole meta-iteration, `lstm` the steps of L2L and Meta-LSTM. Engine imports core only. Core reaches it through
`select_execution`; methods use `kernels` and `lstm`, and training uses `compiled` and `cuda_graph`.
"""
