"""The inner gradient and its derivative written out by hand, where every layer of a network allows it.

Autograd differentiates a gradient by recording every small operation of a backward pass as a graph of its
own. A second-order meta-gradient needs far less of an inner step: its loss and slope, and later one product
of its Hessian with a vector. Both are short programs of whole-batch operations, kept in this package.
"""

from pathaware.engine.handwritten.program import Program, handwritten_program
from pathaware.engine.handwritten.single_task import SingleTaskProgram

__all__ = ["Program", "SingleTaskProgram", "handwritten_program"]
