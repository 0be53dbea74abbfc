"""All tables of operators/, joined: the handlers of operations and of functions, and what kernels
take while they run."""

from __future__ import annotations

from typing import Any, Callable, Dict

from brimful_inside.imaginary.operators import (
    attention,
    convolutions,
    cublas,
    data_dependent,
    fused_kernels,
    host_reads,
    meta_kernels,
    recurrent,
    temporaries,
)
from brimful_inside.imaginary.operators.temporaries import Kernel

TEMPORARIES: Dict[str, Kernel] = {
    **temporaries.TEMPORARIES,
    **attention.TEMPORARIES,
    **convolutions.TEMPORARIES,
    **cublas.TEMPORARIES,
    **fused_kernels.TEMPORARIES,
}


def operation_handlers() -> Dict[Any, Callable]:
    """By ATen's operation: what stands in for its meta kernel. Of two for one operation the later
    counts."""
    return {
        **meta_kernels.handlers(),
        **convolutions.handlers(),
        **data_dependent.handlers(),
        **fused_kernels.operation_handlers(),
        **recurrent.operation_handlers(),
    }


def function_handlers() -> Dict[Any, Callable]:
    """By torch's function, above autograd."""
    return {
        **host_reads.handlers(),
        **fused_kernels.function_handlers(),
        **attention.handlers(),
        **recurrent.function_handlers(),
    }
