"""What a trained model does outside of the engine (reading, answering), on as many items at once as
memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from brimful.errors import DoesNotFit
from brimful_train.step.oom import Missing, attempt, free_what_is_cached
from recipes.common.running import say

T = TypeVar("T")
Made = TypeVar("Made")


def in_pieces(
    items: Sequence[T], work: Callable[[Sequence[T]], Made], at_once: int, device: torch.device
) -> Iterator[Made]:
    """work(some items) until all are done. Memory that is missing halves `at_once`; DoesNotFit
    where it is missing for one.
    """
    done = 0
    while done < len(items):
        some = items[done : done + at_once]
        made = attempt(lambda some=some: work(some))
        if not isinstance(made, Missing):
            done += len(some)
            yield made
            continue
        free_what_is_cached(device)
        if len(some) == 1:
            raise DoesNotFit(
                f"A single one does not fit into memory: {made.message}",
                suggestion="Choose another --device.",
            )
        at_once = len(some) // 2
        say(f"Out of memory ({made.pattern}): {at_once:,} in place of {len(some):,} at once.")
