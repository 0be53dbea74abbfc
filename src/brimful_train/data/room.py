"""What loading may take here: memory of the host and of the card, measured once and the same on
every rank.
"""

import os
import socket
from collections import Counter
from dataclasses import dataclass, replace

import torch

from brimful.decide.loading import Host, smallest
from brimful.measure import host
from brimful_train.distributed.ranks import Ranks


@dataclass(frozen=True)
class Room:
    host: Host
    device_free_bytes: int | None  # of the fullest card; None where there is none


def host_now(device: torch.device) -> Host:
    """This machine as it is, with as many ranks on it as torchrun says."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return Host(
        host.free_bytes(),
        host.cores(),
        host.shm_free_bytes(),
        ranks,
        cards=ranks if device.type == "cuda" else 0,
    )


def shared_host(device: torch.device, ranks: Ranks) -> Host:
    """What all ranks plan with: the first rank of each machine measures, and the least of several
    machines holds.
    """
    named = ranks.gather((socket.gethostname(), host_now(device)))
    least = smallest(dict(reversed(named)).values())
    together = max(least.ranks, *Counter(name for name, _ in named).values())
    return replace(least, ranks=together, cards=together if least.cards else 0)


def device_free_bytes(device: torch.device, ranks: Ranks) -> int | None:
    """Of the fullest card of all ranks; None where the training is on none."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    return min((size for size in ranks.gather(free) if size is not None), default=None)
