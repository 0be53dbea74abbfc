"""How a training script ends: an error in sentences, with the exit code that says what kind of end it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from brimful.errors import BrimfulError
from brimful_inside.script import ends_with

__all__ = ["exit_codes"]


@contextmanager
def exit_codes() -> Iterator[None]:
    """``with exit_codes(): fit(task, config)``: what `fit` raises ends the script without a traceback.

    2 usage, 3 does not fit, 5 diverged, 130 interrupted and 143 terminated after a checkpoint (`brimful.errors` has all).
    A scheduler can tell a clean stop from a crash by them. Rank 0 says all of it, every other rank a line.
    """
    try:
        yield
    except BrimfulError as error:
        ends_with(error)
        rank = os.environ.get("RANK", "0")
        told = error.sentences() if rank == "0" else (f"rank {rank}: {error.problem}",)
        print("\n".join(told), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None
