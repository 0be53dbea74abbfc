"""What a collective gives back: work that is done."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Deque, Iterable, List

import torch
from torch._C._distributed_c10d import Work

__all__ = ["done"]

_KEPT = 256


class _Done(Work):
    """A collective on the card that is over. Its future has the tensors, of which it holds none by itself."""

    def __init__(self, tensors: Iterable[torch.Tensor]):
        super().__init__()
        self._tensors = [weakref.ref(tensor) for tensor in tensors]

    def wait(self, timeout: Any = None) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def block_current_stream(self) -> None:
        return None

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def result(self) -> List[Any]:
        return [tensor() for tensor in self._tensors]

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self.result())
        return future


# C++ holds the work, not the Python object in front of it; once that were gone, waiting would go to a class that waits for
# somebody to say that it is done. The reducer and the coalesced broadcast hold but a few at a time.
_kept: Deque[_Done] = deque(maxlen=_KEPT)


def done(tensors: Iterable[torch.Tensor]) -> Any:
    """Finished work as operations return it, a script object."""
    work = _Done(tensors)
    _kept.append(work)
    return work.boxed()
