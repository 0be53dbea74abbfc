"""`brimful run`: its options, and what they become."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from brimful.cli.options import OUTPUT, WHERE, pair
from brimful.errors import UsageError
from brimful.units import parse_duration
from brimful.verbs.session import Options

RUN = Group("Run", sort_key=2)
USAGE = "Usage: brimful run [--plan RECORD] [OPTIONS] -- COMMAND..."


@Parameter(name="*")
@dataclass(frozen=True)
class Running:
    """What `run` takes."""

    plan: Annotated[str | None, Parameter(group=RUN)] = None
    """A record of `brimful tune`, `latest` (the newest of this command) or `none`. Without it and without --set: the newest of
    this command that is for this machine, if there is one."""
    set_: Annotated[tuple[str, ...], Parameter(name=["--set", "-s"], group=RUN, negative="")] = ()
    """Give a placeholder its value, over the plan's: --set batch_size=64. May be repeated."""
    max_restarts: Annotated[str, Parameter(group=RUN)] = "10"
    """How often it may start again with a smaller batch size after it ran out of memory."""
    resume_with: Annotated[str | None, Parameter(group=RUN, allow_leading_hyphen=True)] = None
    """The words that stand for {resume} when it starts again: --resume-with "--resume last"."""
    grace: Annotated[str, Parameter(group=RUN)] = "90s"
    """How long the command may take to end by itself after a signal, writing its checkpoint, before it is killed."""
    host_limit: Annotated[str | None, Parameter(group=RUN)] = None
    """End the command as out of host memory when its processes are seen to hold more: 20GiB. They are looked at about
    every 0.01 s, and what they fill between two looks can pass it."""
    device: Annotated[str | None, Parameter(group=WHERE)] = None
    """auto (the plan's, else the accelerator that is here, else the CPU), cpu or accelerator."""
    gpu: Annotated[str | None, Parameter(group=WHERE, show=False)] = None
    gpu_memory: Annotated[str | None, Parameter(group=WHERE, show=False)] = None
    home: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Where records are kept; else BRIMFUL_HOME, else .brimful here."""
    json: Annotated[bool, Parameter(name="--json", negative="", group=OUTPUT)] = False
    """One JSON object on standard output; what the command prints there goes to standard error."""


def run_command(*, running: Running | None = None, words: Annotated[tuple[str, ...], Parameter(parse=False)] = ()) -> int:
    """Train under a plan: out of memory means going on with the next smaller batch size, not a lost night."""
    from brimful.cli import views
    from brimful.verbs.run import run as verb

    asked = running or Running()
    if asked.gpu is not None or asked.gpu_memory is not None:
        raise UsageError(
            problem=f"brimful run --gpu {asked.gpu or asked.gpu_memory}",
            explanation="an imaginary card computes nothing, so nothing can be trained on it",
            suggestion="ask `brimful predict` or `brimful tune` for that card, and run the plan on a real one",
        )
    with _progress(asked.json) as watcher:
        record = verb(
            words,
            plan=asked.plan,
            settings=dict(map(pair, asked.set_)),
            device=asked.device,
            max_restarts=_restarts(asked.max_restarts),
            resume_with=asked.resume_with,
            grace_s=parse_duration(asked.grace),
            host_limit=asked.host_limit,
            options=Options(home=asked.home),
            watcher=watcher,
        )
    return views.show_run(record, asked.json)


def _progress(json: bool) -> Any:
    """Who looks on. With --json the command's standard output goes to standard error, for ours is data."""
    from brimful.show.progress import RunProgress

    out = sys.stderr if json else sys.stdout
    terminals = {name: stream.fileno() for name, stream in (("stdout", out), ("stderr", sys.stderr)) if _is_terminal(stream)}
    return RunProgress(getattr(out, "buffer", io.BytesIO()), sys.stderr, terminals, live="stderr" in terminals)


def _is_terminal(stream: Any) -> bool:
    asks: Callable[[], bool] | None = getattr(stream, "isatty", None)
    return asks is not None and asks()


def _restarts(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(problem=f"--max-restarts {text}", explanation="it is a whole number", suggestion="give 0 or more")
    return int(text)
