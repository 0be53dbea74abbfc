"""How a recipe begins and ends: the command line read, errors told in sentences, exit codes (brimful.errors has them)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError

from brimful.errors import BrimfulError, UsageError
from brimful.recipes.common import FLAGS
from brimful_inside.script import ends_with

__all__ = ["is_first", "run", "say"]


def is_first() -> bool:
    """Whether this process speaks for all: rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def say(sentence: str) -> None:
    """On standard error: standard output is for results."""
    print(sentence, file=sys.stderr, flush=True)


def run(app: App, argv: Sequence[str]) -> int:
    """Runs one command line of a recipe and returns its exit code.

    The first rank tells an error in full. Every other one says in a line what it saw, as it may be the only one to fail.
    """
    try:
        function, bound = _parse(app, argv)
        return function(*bound.args, **bound.kwargs) or 0
    except BrimfulError as error:
        ends_with(error)
        _tell(error)
        return error.exit_code
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    except BrokenPipeError:  # `... read folder | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parse(app: App, argv: Sequence[str]) -> tuple[Callable[..., Any], Any]:
    try:
        function, bound, _ = app.parse_args(list(argv), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split()), suggestion="--help lists all options.") from None
    return function, bound


def _tell(error: BrimfulError) -> None:
    if not is_first():
        say(f"rank {os.environ['RANK']}: {in_flags(error.problem)}")
        return
    for sentence in error.sentences():
        say(in_flags(sentence))


def in_flags(sentence: str) -> str:
    """A sentence of the engine's, in which settings have the names of Config, in the words of the command line."""
    return re.sub(r"config(\.\w+)+", lambda found: FLAGS.get(found.group(), found.group()), sentence)
