"""Streams: where each thread is (its current card, its current stream on each), what the host knows
of the work that a card's streams were given, which private pools serve them, and which of them a
CUDA graph captures."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_right
from collections import deque
from typing import (
    Any,
    Callable,
    ContextManager,
    Deque,
    Dict,
    Iterator,
    List,
    Optional,
    Set,
    Tuple,
)

import torch

from brimful_inside.imaginary.state.errors import cuda_error
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.patches import replaced

Stream = Tuple[int, int]  # the card's number, and the stream's on it
PoolId = Tuple[int, int]  # of a private pool, as PyTorch numbers them
# How many kernels the host may be ahead of the card: beyond some thousand the driver's launch queue
# is full and launching waits. 1024 is what people see; NVIDIA documents no figure (assumed).
RUN_AHEAD = 1024
_POOL_SIZE = 32  # streams per priority that PyTorch hands out in turn (c10/cuda/CUDAStream.cpp)
NO_NUMBER = 1 << 62  # accumulations of gradients have the largest number there is
next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr  # type: ignore[attr-defined]
_current_node: Callable[[], Any] = torch._C._current_autograd_node  # type: ignore[attr-defined]
_graph_task = torch._C._current_graph_task_id  # -1 outside of a backward pass
_GENERATOR_STATE_BYTES = 8  # of its seed, and of its offset: one int64 each


def current_number() -> int:
    """The number, among the autograd nodes of the thread that made it, of the one that runs."""
    return getattr(_current_node(), "_sequence_nr", lambda: NO_NUMBER)()


class CurrentStreams(threading.local):
    """The current card and streams of one thread; a stream is a number on its card, and 0 is the
    default stream. The autograd engine runs each node on the streams of its forward pass.

    `card` is torch.cuda.current_device(), `named` the card that the call in hand needs (by a
    device, or by where its inputs are), `last` the card of the last operation: what C++ makes
    without a named card belongs to the same work."""

    card = 0
    named: Optional[int] = None
    last: Optional[int] = None

    def __init__(self, turn: Iterator[int]):
        """`turn` counts new streams. Called again in each thread, with the same counter."""
        self._turn = turn
        self._by_card: Dict[int, int] = {}
        # from which autograd node on these were the streams, for a backward pass
        self._marks: List[Tuple[int, Dict[int, int]]] = []
        # the node that `_by_card` is for, None outside of a backward pass; the streams there
        self._follows: Tuple[Optional[int], Dict[int, int]] = None, {}

    @property
    def target(self) -> int:
        """The card on which something new is made."""
        return self.card if self.named is None else self.named

    @property
    def current(self) -> int:
        return self.of(self.target)

    def of(self, index: int) -> int:
        """The current stream of this thread on card `index`."""
        if self._marks:
            self._follow_engine()
        return self._by_card.get(index, 0)

    def select(self, stream_id: int, index: int) -> None:
        """Makes a stream of card `index` the current one there."""
        self._follow_engine()
        self._by_card = {**self._by_card, index: stream_id}
        while self._marks and self._marks[-1][0] == next_number():
            self._marks.pop()
        self._marks.append((next_number(), self._by_card))

    def _follow_engine(self) -> None:
        node = None if _graph_task() == -1 else current_number()
        before, outside = self._follows
        if node != before:
            outside = self._by_card if before is None else outside
            last = bisect_right(self._marks, (NO_NUMBER if node is None else node + 1,)) - 1
            of_node = self._marks[last][1] if last >= 0 else {}
            self._by_card = outside if node is None else of_node
            self._follows = node, outside

    def new(self) -> int:
        return 1 + next(self._turn) % _POOL_SIZE

    def on(self, index: int) -> ContextManager[None]:
        return replaced(self, "named", index)


class StreamWork:
    """What the streams of one card were given to do, how much of it the host knows to be done, and
    the blocks that wait for it."""

    def __init__(self) -> None:
        self.launches = 0  # kernels so far
        # those that the host has waited for, by stream; None: by all streams
        self._reached: Dict[Optional[int], int] = {}
        # streams that wait for others: (which, launches by then, for whom, its first so many)
        self._joins: Deque[Tuple[int, int, int, int]] = deque(maxlen=RUN_AHEAD)
        # (block, streams that use it, launches when it was retired)
        self.retired: List[Tuple[Any, Set[int], int]] = []

    @one_at_a_time
    def synchronized(self, stream: Optional[int] = None, launches: Optional[int] = None) -> None:
        """The host has waited for `stream` (None: for the card), or for its first so many
        `launches`, and with it for what that stream had waited for."""
        reached = {stream: self.launches if launches is None else launches}
        for waiting, at, other, first in reversed(self._joins):
            if at < reached.get(waiting, -1):
                reached[other] = max(reached.get(other, -1), first)
        for by, first in reached.items():
            self._reached[by] = max(self._reached.get(by, -1), first)
        for _, streams, retired_at in self.retired:
            if stream is None:
                streams.clear()
            streams.difference_update(by for by in reached if retired_at <= reached[by])

    @one_at_a_time
    def joined(self, stream: int, other: int, launches: int) -> None:
        """What `stream` is given from now on runs after the first so many `launches` of `other`."""
        if stream != other:
            self._joins.append((stream, self.launches, other, launches))

    def has_reached(self, stream: int, launches: int) -> bool:
        """Whether the host has waited for the first so many `launches` of `stream`, or could not
        have launched what came since otherwise."""
        reached = max(self._reached.get(by, -1) for by in (stream, None))
        return launches <= reached or self.launches - launches >= RUN_AHEAD

    def retire(self, block: Any, streams: Set[int]) -> None:
        """`block` is free once these streams have done what they were given till now."""
        self.retired.append((block, streams, self.launches))

    def done(self) -> List[Any]:
        """The retired blocks that are free now.

        A card's host runs ahead. So the streams are taken to be done when the host has waited for
        them, or when so much was launched since that the driver's queue would have made it wait:
        the block returns no sooner than on a card."""

        def is_done(entry: Any) -> bool:
            return not entry[1] or self.launches - entry[2] >= RUN_AHEAD

        done = [entry[0] for entry in self.retired if is_done(entry)]
        if done:
            self.retired = [entry for entry in self.retired if not is_done(entry)]
        return done


class PrivatePools:
    """The private pools of one card: which streams each serves now, and its number in the trace."""

    def __init__(self) -> None:
        # in use: id, which streams they serve, and whether a graph is captured
        self._diverted: List[Tuple[Any, Callable[[int], bool], bool]] = []
        self._numbers: Dict[Any, int] = {}  # by PyTorch's id
        self._next = itertools.count(1)

    def divert(self, pool: Any, serves: Callable[[int], bool], captures: bool) -> None:
        if any(pool == other for other, *_ in self._diverted):
            raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
        self._diverted.append((pool, serves, captures))

    def end_divert(self, pool: Any) -> bool:
        """Whether a capture ends."""
        ended = [scope for scope in self._diverted if scope[0] == pool]
        self._diverted = [scope for scope in self._diverted if scope[0] != pool]
        return any(captures for *_, captures in ended)

    def serving(self, stream: int) -> int:
        """The number of the pool that serves `stream`; 0: the general ones do."""
        for pool, serves, _ in reversed(self._diverted):
            if serves(stream):
                return self.number(pool)
        return 0

    @one_at_a_time
    def number(self, pool: Any) -> int:
        """The trace's number of a private pool, by first use; a pool that was released comes back
        as another one."""
        if pool not in self._numbers:
            self._numbers[pool] = next(self._next)
        return self._numbers[pool]

    def id_of(self, number: int) -> PoolId:
        """PyTorch's id of the private pool that has this number, while it is in use; (0, 0) for the
        general ones."""
        return next((pool for pool, own in self._numbers.items() if own == number), (0, number))

    def release(self, pool: Any) -> Optional[int]:
        return self._numbers.pop(pool, None)


class Captured:
    """What a graph holds: its pool, and its share of the generator's state on the card."""

    def __init__(self, captures: Captures, ledger: Any, pool: PoolId):
        self.captures = captures
        self.ledger = ledger
        self.pool = pool
        self.ended = False
        captures.retain(ledger, pool)
        captures.register_generator(self)

    def destroy(self) -> None:
        """The graph is gone (CUDAGraph::reset)."""
        self.captures.forget(self)
        self.captures.release(self.ledger, self.pool)


class Captures:
    """The captures under way, and the private pools with the number of those who use each."""

    def __init__(self) -> None:
        # streams under capture; others join by waiting for one of them
        self.by_stream: Dict[Stream, Captured] = {}
        # by card, each of which has pools of its own
        self._users: Dict[Tuple[int, PoolId], int] = {}
        self._own, self._handles = itertools.count(1), itertools.count(1)
        self._with_generator: Dict[int, List[Captured]] = {}  # by card, as the generators are
        self._generator_state: Dict[int, List[Tuple[int, int]]] = {}

    def new_pool(self) -> PoolId:
        return next(self._own), 0

    def new_handle(self) -> PoolId:
        """The id of a pool that a script makes (torch.cuda.graph_pool_handle,
        torch.cuda.MemPool)."""
        return 0, next(self._handles)

    def users(self, ledger: Any, pool: PoolId) -> int:
        return self._users.get((ledger.index, pool), 0)

    @one_at_a_time
    def retain(self, ledger: Any, pool: PoolId) -> None:
        self._users[ledger.index, pool] = self.users(ledger, pool) + 1

    @one_at_a_time
    def release(self, ledger: Any, pool: PoolId, empty: bool = False) -> None:
        """One user of `pool` less. After the last one its memory may go; with `empty` it goes
        now."""
        left = self._users[ledger.index, pool] = self.users(ledger, pool) - 1
        if left == 0:
            del self._users[ledger.index, pool]
            ledger.release_pool(pool, empty)

    @one_at_a_time
    def join(self, stream: Stream, captured: Optional[Captured]) -> None:
        """`stream` waits for work that was given under `captured`: while that goes on, so does its
        own."""
        if captured is not None and not captured.ended:
            self.by_stream[stream] = captured

    def check_waiting(self, stream: Optional[Stream] = None) -> None:
        """The host is about to wait for `stream` (None: for the card). Raises the card's error
        during a capture."""
        if self.by_stream and (stream is None or stream in self.by_stream):
            # cudaErrorStreamCaptureUnsupported
            raise cuda_error("operation not permitted when stream is capturing")

    @one_at_a_time
    def register_generator(self, captured: Captured) -> None:
        """Seed and offset of the generator lie on the card while a graph lives
        (CUDAGeneratorState::register_graph)."""
        ledger = captured.ledger
        registered = self._with_generator.setdefault(ledger.index, [])
        if not registered:
            self._generator_state[ledger.index] = [
                ledger.reserve(_GENERATOR_STATE_BYTES, "state of the generator for CUDA graphs")
                for _ in range(2)
            ]
        registered.append(captured)

    @one_at_a_time
    def forget(self, captured: Captured) -> None:
        registered = self._with_generator[captured.ledger.index]
        registered.remove(captured)
        if not registered:
            captured.ledger.release_all(self._generator_state.pop(captured.ledger.index))
        self.end(captured)

    @one_at_a_time
    def end(self, captured: Captured) -> None:
        """No stream is under this capture any more."""
        if not captured.ended:
            captured.ended = True
            captured.ledger.end_divert(captured.pool)
        for stream in [stream for stream, under in self.by_stream.items() if under is captured]:
            del self.by_stream[stream]
