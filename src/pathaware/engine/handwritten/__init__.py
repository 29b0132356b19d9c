"""Hand-written gradients and Hessian-vector products, for networks that are plain chains of known layers.

Autograd differentiates a gradient by recording every small operation of a backward pass in a graph. A
second-order meta-gradient needs far less of an inner step: the loss and its gradient, and later one product
of the Hessian with a vector. Both are short programs of whole-batch operations.
"""

from pathaware.engine.handwritten.program import Program, handwritten_program, task_threads

__all__ = ["Program", "handwritten_program", "task_threads"]
