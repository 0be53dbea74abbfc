"""What a training process tries by itself, one batch size after another: the memory that there is,
what an attempt took of it, and what records of the same script say.
"""

import gc
import itertools
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from brimful.command import parse, signature
from brimful.decide.memory.search_measured import Measured
from brimful.errors import UsageError
from brimful.measure import host
from brimful.outcomes import OUT_OF_MEMORY
from brimful.record import made_here
from brimful.values import Outcome, Record
from brimful.verbs.run_plan import card_of, is_same_card
from brimful_inside.probe.memory.host_memory import HostMeter
from brimful_inside.simulator.oom_patterns import match_oom, qualified_name

GRACE_S = 10.0  # assumed: in which ranks that run out together have all said so


class Memory:
    """Of the device that this process trains on. `kind`: "device", or "host" on a CPU."""

    def __init__(self, device: torch.device | None = None):
        if device is None:
            here = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
            device = torch.device(here)
        self.kind = "host" if device.type == "cpu" else "device"
        self._device, self._api = device, getattr(torch, device.type)

    def begin(self) -> int:
        """From here on the peak is that of what follows. Returns the bytes that this process may
        hold: what it holds already, and what is free."""
        gc.collect()
        if self.kind == "host":
            HostMeter.reset()
            return HostMeter.peak_bytes() + host.free_bytes()
        self._api.empty_cache()
        free_bytes, _ = self._api.mem_get_info(self._device)  # the first use, where there was none
        self._api.reset_peak_memory_stats(self._device)
        return free_bytes + self._api.memory_reserved(self._device)

    def peak_bytes(self) -> int:
        """Resident memory, or what PyTorch's allocator reserved, since `begin`."""
        on_host = self.kind == "host"
        return HostMeter.peak_bytes() if on_host else self._api.max_memory_reserved(self._device)


class Ranks:
    """All ranks of the training, which meet in torch.distributed's store and not in a collective:
    it takes no memory, and serves a rank that others wait for in one."""

    def __init__(self, name: str):
        self._name, self._meetings, self._store = name, itertools.count(), None

    def gather(self, value: Any, in_vain: Callable[[], object] | None = None) -> list[Any]:
        """The value of each rank, by rank. `in_vain` is called where others do not come within
        GRACE_S; without it they are waited for."""
        if dist.is_available() and dist.is_initialized():  # a script may end it before we meet
            self._store = self._store or c10d._get_default_store()
            self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        if self._store is None:
            return [value]
        meeting, begun_s = next(self._meetings), time.monotonic()
        keys = [f"{self._name}/{meeting}/{rank}" for rank in range(self._ranks)]
        self._store.set(keys[self._rank], pickle.dumps(value).hex())
        while not self._store.check(keys):
            time.sleep(0.02)
            if in_vain is not None and time.monotonic() > begun_s + GRACE_S:
                in_vain()
        return [pickle.loads(bytes.fromhex(self._store.get(key).decode())) for key in keys]


def worst(shown: Iterable[Measured]) -> Measured:
    """What all ranks go by: memory that ran out on one of them, else the largest peak."""
    return max(shown, key=lambda each: (each.outcome in OUT_OF_MEMORY, each.peak_bytes or 0))


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory was missing, in any of its forms."""
    return match_oom(qualified_name(type(error)), str(error)) is not None


def measured(work: Callable[[], object], memory: Memory) -> Measured:
    """What `work` took, or that memory ran out in it. All other errors are raised."""
    memory.begin()
    try:
        work()
    except Exception as error:
        if not ran_out(error):
            raise
        return Measured(Outcome.OUT_OF_DEVICE_MEMORY)
    return Measured(Outcome.COMPLETED, memory.peak_bytes())


def records_of_this_script(*verbs: str) -> Iterator[Record]:
    """What these verbs left of this very script in this folder, for a device as this one is, the
    newest first. How it was launched, settings, seeds and names may differ."""
    try:
        ours = signature(parse(("python", *sys.argv)))[1:]
    except UsageError:  # words with which brimful starts nothing, so that no record is of them
        return
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    for record, command in made_here(None, *verbs):
        if signature(command)[-len(ours) :] == ours and is_same_card(card_of(record) or "", here):
            yield record
