"""Work outside of the engine (encoding, reading, answering) on as many items at once as memory
holds.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from brimful.errors import DoesNotFit
from brimful_train.step.oom import Missing, attempt, free_what_is_cached
from recipes.common.running import say

T = TypeVar("T")
Made = TypeVar("Made")


def in_pieces(
    items: Sequence[T],
    work: Callable[[Sequence[T]], Made],
    budget: float,
    device: torch.device,
    cost: Callable[[T], float] = lambda _: 1.0,
) -> Iterator[Made]:
    """work(some items) until all are done. A piece costs as many times its first item as it has
    items, at most `budget`: items are sorted by cost, the dearest first. Memory that is missing
    halves the budget; DoesNotFit where it is missing for one item.
    """
    done = 0
    while done < len(items):
        dearest = max(cost(items[done]), 1e-9)
        some = items[done : done + max(1, int(budget / dearest))]
        result = attempt(lambda some=some: work(some))
        if not isinstance(result, Missing):
            done += len(some)
            yield result
            continue
        free_what_is_cached(device)
        if len(some) == 1:
            raise DoesNotFit(
                f"A single item does not fit into memory: {result.message}",
                suggestion="Choose another --device.",
            )
        budget = dearest * len(some) / 2
        say(f"Out of memory ({result.pattern}) on {len(some):,} items: half as many from here on.")
