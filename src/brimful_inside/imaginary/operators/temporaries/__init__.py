"""Memory that CUDA's kernels take while they run, beside the tensors that come out: the meta kernels have none of it.

Each room has a table from the name of an operation to a function of the card and the call that says what is held from its start
to its end. The files named in it are PyTorch's, under aten/src/ATen/native unless said otherwise.
"""

from __future__ import annotations

from typing import Dict

from brimful_inside.imaginary.operators.temporaries import (
    attention,
    convolutions,
    elementwise,
    indexing,
    losses,
    norms,
    products,
    reductions,
)
from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Law,
    Machine,
    Passing,
)
from brimful_inside.imaginary.operators.temporaries.products import uses_cublas, uses_cublaslt

__all__ = ["TEMPORARIES", "Held", "Kernel", "Law", "Machine", "Passing", "uses_cublas", "uses_cublaslt"]


TEMPORARIES: Dict[str, Kernel] = {
    **attention.KERNELS,
    **convolutions.KERNELS,
    **elementwise.KERNELS,
    **indexing.KERNELS,
    **losses.KERNELS,
    **norms.KERNELS,
    **products.KERNELS,
    **reductions.KERNELS,
}
