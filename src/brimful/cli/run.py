"""`brimful run`: its options."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from brimful.cli import views
from brimful.cli.options import GPU_MEMORY, OUTPUT, WHERE, Home, Words, flag, pair, whole
from brimful.errors import UsageError
from brimful.units import parse_duration

RUN = Group("Run", sort_key=2)


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """How it trains, and what happens when it ends.

    Parameters
    ----------
    plan
        A record of `brimful tune`, `latest` (the newest of this command) or `none`. Without it and
        without --set: the newest of this command that is for this machine, if there is one.
    set_
        The value of a setting, in place of the plan's: --set batch_size=64. May be repeated.
    max_restarts
        How often it may start again with a smaller batch size after it ran out of memory.
    resume_with
        The text that replaces {resume} when it starts again: --resume-with "--resume last".
    fresh
        Begin anew, although the last run of this command was cut off (killed, told to end, or the
        machine went down); without it, brimful goes on from that run's checkpoint, with the text of
        --resume-with.
    grace
        How long the command may take to end after a signal, writing its checkpoint, before brimful
        kills it.
    batch_size_from
        Where brimful sets the batch size: flag (of the command), script (a number in its text),
        loader (where the DataLoader is made) or none (it stays as it is). auto takes the first of
        them that exists.
    host_limit
        End the command as out of host memory when its processes hold more: 20GiB. brimful looks
        at them every 0.2 s, near the limit every 0.01 s, and they can pass it between two looks.
    device
        auto (the plan's, else the accelerator that is here, else the CPU), cpu or accelerator.
    home
        The folder of the records. Default: BRIMFUL_HOME, or .brimful here.
    json
        One JSON object on standard output; what the command prints there goes to standard error.
    """

    plan: Annotated[str | None, Parameter(group=RUN, metavar="RECORD")] = None
    set_: Annotated[
        tuple[str, ...], flag(name=["--set", "-s"], group=RUN, metavar="NAME=VALUE")
    ] = ()
    max_restarts: Annotated[str, Parameter(group=RUN, metavar="N")] = "10"
    resume_with: Annotated[
        str | None, Parameter(group=RUN, metavar="WORDS", allow_leading_hyphen=True)
    ] = None
    fresh: Annotated[bool, flag(group=RUN)] = False
    grace: Annotated[str, Parameter(group=RUN, metavar="TIME")] = "90s"
    batch_size_from: Annotated[str, Parameter(group=RUN, metavar="PLACE")] = "auto"
    host_limit: Annotated[str | None, Parameter(group=RUN, metavar="MEMORY")] = None
    device: Annotated[str | None, Parameter(group=WHERE, metavar="DEVICE")] = None
    home: Home = None
    json: Annotated[bool, flag(name="--json", group=OUTPUT)] = False


def run(
    *,
    options: RunOptions = RunOptions(),
    gpu: Annotated[str | None, Parameter(group=WHERE, metavar="NAME", show=False)] = None,
    gpu_memory: Annotated[str | None, Parameter(show=False), GPU_MEMORY] = None,
    words: Words = (),
) -> int:
    """Train, and go on with a smaller batch after out of memory.

    After an out-of-memory error it starts again with a smaller batch size.
    """
    from brimful.verbs.run import RunOptions as VerbOptions
    from brimful.verbs.run import run as verb

    if gpu is not None or gpu_memory is not None:
        raise UsageError(
            problem=f"brimful run --gpu {gpu or gpu_memory}",
            explanation="an imaginary card computes nothing, so nothing can be trained on it",
            suggestion="ask `brimful predict` for that card, and train on a real one",
        )
    with views.run_progress(options.json) as watcher:
        record = verb(
            words,
            plan=options.plan,
            settings=dict(map(pair, options.set_)),
            device=options.device,
            options=VerbOptions(
                home=options.home,
                batch_size_from=options.batch_size_from,
                watcher=watcher,
                max_restarts=whole("--max-restarts", options.max_restarts, 0),
                resume_with=options.resume_with,
                fresh=options.fresh,
                grace_s=parse_duration(options.grace),
                host_limit=options.host_limit,
            ),
        )
    return views.show_run(record, options.json)
