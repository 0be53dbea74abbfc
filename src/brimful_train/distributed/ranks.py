"""The processes of one training: who they are, and what they must decide together.

Decisions go over a control group on the host (gloo), so that none of them waits for a device, and
each is made once for all. A process that fails announces it at their next meeting instead of
leaving them in a collective that never ends.
"""

import contextlib
import datetime
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from brimful.errors import BrimfulError, DoesNotFit, UsageError

# Assumed: longer than the slowest thing that one rank does while others wait (compiling, a
# checkpoint to a slow disk).
MEETING_TIMEOUT = datetime.timedelta(hours=2)

SEE_ITS_OUTPUT = "Its own output shows the error."
FINE, OUT_OF_MEMORY, GIVES_UP, BROKEN = 0, 1, 2, 3  # the outcome of a rank's part of a step


class Vote(NamedTuple):
    """What one rank brings to a meeting. All numbers, so that a meeting is one small all-gather."""

    status: int = FINE
    piece: int = 0  # the most samples that this rank puts through the model at once; 0: no opinion
    signal: int = 0  # a signal that asks for the end; 0: none
    samples: int = 0  # of this rank in this update
    gradients: int = 0  # a checksum of which parameters have a gradient
    save: int = 0  # 1: a checkpoint is due by this rank's clock
    recoveries: int = 0  # replays after out-of-memory in this update
    by_count: int = 0  # 1: the loss is a Sum


class RankFailed(BrimfulError):
    """Another rank met an error that ends the training; its own output shows it."""

    brimful_meaning = "another-rank"  # `brimful_inside.wire.Failure.meaning`


def device_for(name: str) -> torch.device:
    """The device that "auto" or a torch name means in this process: with several ranks, each its
    own accelerator.
    """
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        available = torch.accelerator.is_available()
        accelerator = torch.accelerator.current_accelerator() if available else None
        name = "cpu" if accelerator is None else accelerator.type
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(
            f"config.device = {name!r} is no device's name", "", 'write "auto", "cpu" or "cuda:0"'
        ) from None
    if device.type == "cpu":
        return device
    index, count = local if device.index is None else device.index, torch.accelerator.device_count()
    if index >= count:
        raise UsageError(
            f"config.device = {name!r} means {device.type}:{index} here, and this process sees "
            f"{count} of them",
            "Each rank needs an accelerator of its own.",
            f"start {max(count, 1)} processes (torchrun --nproc-per-node), or set config.device "
            "to cpu",
        )
    return torch.device(device.type, index)


class Ranks:
    """This process among `size` of them. One process alone needs no group, and meetings are then
    free.
    """

    def __init__(self, device: torch.device, backend: str | None = None):
        """`backend`: for what ranks exchange on the device; None: PyTorch's own for it."""
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._started = False
        self._control: Any = None
        self._failure_is_known = False
        # False: forward or backward communicate, and ranks wait there and come to no meeting
        self.meets_in_steps = True
        if dist.is_available() and dist.is_initialized():
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
        elif self.size > 1:
            backend = backend or dist.get_default_backend_for_device(device)
            if not dist.is_backend_available(backend):
                raise UsageError(
                    f"config.backend = {backend!r}: PyTorch has no such backend here",
                    "",
                    "Name gloo or nccl.",
                )
            backend = backend if device.type == "cpu" else f"cpu:gloo,{device.type}:{backend}"
            # torchrun's store outlives a restart: the ranks would find the addresses of those that
            # ended.
            store, _, _ = next(
                dist.rendezvous("env://", self.rank, self.size, timeout=MEETING_TIMEOUT)
            )
            store = dist.PrefixStore(
                f"brimful/start {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store
            )
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.size, timeout=MEETING_TIMEOUT
            )
            self._started = True
        if self.size > 1:
            self._control = dist.new_group(backend="gloo", timeout=MEETING_TIMEOUT)
            self._table = [torch.zeros(len(Vote()), dtype=torch.int64) for _ in range(self.size)]

    @property
    def first(self) -> bool:
        """Whether this rank writes the files and the log."""
        return self.rank == 0

    def meet(self, vote: Vote) -> list[Vote]:
        """Every rank's vote, in the order of ranks. Each takes part, whatever happened to it; where
        one failed, all raise.
        """
        votes = self._exchange(vote)
        for rank, each in enumerate(votes):
            if each.status in (GIVES_UP, BROKEN):
                self._failure_is_known = True
                meaning = "All ranks end with it. The last checkpoint stays as it is."
                if each.status == BROKEN:
                    raise RankFailed(f"Rank {rank} ended with an error.", meaning, SEE_ITS_OUTPUT)
                error = DoesNotFit(
                    f"The training does not fit into the memory of rank {rank}.",
                    meaning,
                    SEE_ITS_OUTPUT,
                )
                error.brimful_meaning = "does-not-fit-elsewhere"
                raise error
        return votes

    def confirm(self) -> None:
        """A meeting before anything else that all ranks do together: raises where one of them
        failed.
        """
        self.meet(Vote())

    def _exchange(self, vote: Vote) -> list[Vote]:
        if self.size == 1:
            return [vote]
        dist.all_gather(
            self._table, torch.tensor([int(value) for value in vote]), group=self._control
        )
        return [Vote(*row.tolist()) for row in self._table]

    def announce(self, status: int) -> None:
        """This rank ends with an error, and the others with it, at their next meeting. Once, if
        they do not know.

        Under FSDP2 and overlapped reduction they may wait in a collective instead: there torchrun
        ends them.
        """
        if self.size == 1 or self._failure_is_known:
            return
        self._failure_is_known = True
        if self.meets_in_steps:
            # a group that is broken already has nobody left in it
            with contextlib.suppress(RuntimeError):
                self._exchange(Vote(status))

    def gather(self, value: Any) -> list[Any]:
        """`value` of every rank (small Python values), on every rank."""
        if self.size == 1:
            return [value]
        self.confirm()
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self._control)
        return gathered

    def from_first(self, value: Any) -> Any:
        """Rank 0's `value`, on every rank: what all must decide alike is decided once."""
        if self.size == 1:
            return value
        self.confirm()
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Rank 0's values into `tensors` of all ranks (weights at the start, running statistics
        before they count).
        """
        if self.size == 1:
            return
        self.confirm()
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def close(self) -> None:
        """Ends the groups that were made here. Gloo ends a group's threads with the last reference
        to it: one that still frees tensors while Python ends would abort the process, which
        torchrun takes for a failure."""
        control, self._control = self._control, None
        if control is not None and dist.is_initialized():
            dist.destroy_process_group(None if self._started else control)
            self._started = False
