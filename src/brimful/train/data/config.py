"""How data is loaded: the settings."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.errors import UsageError
from brimful.train.checking import check_types

__all__ = ["DataConfig"]

_RESIDENCES = ("auto", "device", "pinned", "host", "loader")


@dataclass(frozen=True)
class DataConfig:
    """`residence` says where a data set of arrays lives: on the device, in pinned memory, on the host as it is, or behind
    a loader with workers; "auto" takes the first that its memory share allows. Other data sets are always behind a loader."""

    workers: int | None = None  # of each rank; None: measured
    residence: str = "auto"
    memory_share: float = 0.25  # of the free memory, for the data set. Assumed: the training needs most of it
    prefetch: int = 2  # batches made ahead by each worker; PyTorch's own default
    random_samples: bool = True  # each sample has a random state of its own; False: the data set draws no random numbers

    def __post_init__(self) -> None:
        check_types(self, "config.data")
        if self.workers is not None and self.workers < 0:
            raise UsageError(
                f"config.data.workers = {self.workers}", "it must be 0 or more", "leave it out to have it measured"
            )
        if self.residence not in _RESIDENCES:
            raise UsageError(f"config.data.residence = {self.residence!r}", "unknown", f"one of {', '.join(_RESIDENCES)}")
        if not 0 < self.memory_share <= 1:
            raise UsageError(f"config.data.memory_share = {self.memory_share}", "a share is above 0 and up to 1", "try 0.25")
        if self.prefetch < 1:
            raise UsageError(f"config.data.prefetch = {self.prefetch}", "a worker makes one batch at least", "try 2")
