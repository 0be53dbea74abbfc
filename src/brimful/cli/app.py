"""The commands. Each one parses its options, calls its verb, and shows what came of it."""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from brimful import __version__
from brimful.cli import views
from brimful.cli.options import (
    CARD,
    COMMON,
    HERE,
    RUNNING,
    Card,
    Common,
    Here,
    Running,
    axes,
    setting_name,
    whole,
)
from brimful.errors import BrimfulError, DiskFull, Terminated, UsageError

Words = Annotated[tuple[str, ...], Parameter(parse=False)]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


def _example(words: str) -> str:
    return f"Your own command follows two dashes: brimful {words}"


app = App(
    name="brimful",
    version=__version__,
    help="Fill the GPU to the brim, and never spill: what a training command needs, what it "
    "really does, and the settings "
    "that train fastest within memory.",
    help_epilogue=_example("predict --gpu a100-40gb -- python train.py --batch-size 64"),
)


@app.command(usage="Usage: brimful predict --gpu NAME [OPTIONS] -- COMMAND...")
def predict(
    *,
    card: Card = CARD,
    common: Common = COMMON,
    what_if: bool | None = None,
    samples: str | None = None,
    solve: str | None = None,
    grid: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    words: Words = (),
) -> int:
    """Will it fit a card that you need not have: memory by phase, speed, and the largest batch size
    that fits.

    Parameters
    ----------
    what_if
        Try what would save memory (mixed precision, gradient checkpointing, ...), and what batch
        size would fit then. Without it, brimful tries it where the requested batch size does not
        fit; --no-what-if never tries it.
    samples
        Training samples of an epoch, over all ranks, where only a part of the data is here:
        --samples 50030.
    solve
        Name the largest value of another setting that fits: --solve max_length, for a {max_length}
        or a flag --max-length.
    grid
        A table: --grid batch_size=1,2,4,8 shows memory and speed at each. Given twice, of every
        combination.
    """
    from brimful.verbs.predict import predict as verb

    with views.progress() as watcher:
        record = verb(
            words,
            **card.chosen(),
            **common.chosen(watcher),
            what_if=what_if,
            samples=whole("--samples", samples, 1) if samples is not None else None,
            solve=solve and setting_name(solve),
            grid=axes(grid),
        )
    return views.show_prediction(record, common.json, common.details)


@app.command(
    usage="Usage: brimful audit [OPTIONS] -- COMMAND...",
    help_epilogue=_example("audit -- python train.py --batch-size 64"),
)
def audit(
    *, card: Card = CARD, here: Here = HERE, common: Common = COMMON, words: Words = ()
) -> int:
    """What the script really does: effective batch size, hidden caps, accumulation, repeated
    batches, loading.
    """
    from brimful.verbs.audit import audit as verb

    with views.progress() as watcher:
        record = verb(words, **card.chosen(), device=here.device, **common.chosen(watcher))
    return views.show_audit(record, common.json, common.details)


@app.command(
    usage="Usage: brimful tune [OPTIONS] -- COMMAND...",
    help_epilogue=_example("tune -- python train.py --batch-size 64"),
)
def tune(
    *,
    card: Card = CARD,
    here: Here = HERE,
    common: Common = COMMON,
    objective: str | None = None,
    host_policy: str = "measured",
    strict: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    page: bool = True,
    words: Words = (),
) -> int:
    """The settings that train fastest within memory, each one run before it is named.

    Parameters
    ----------
    objective
        fastest (the default), largest (the largest batch size that fits) or fit (the largest up to
        the requested one). With
        --gpu brimful predicts which is fastest; with --gpu-memory, which says nothing of speed, the
        default is largest.
    host_policy
        How many loader workers there is room for: measured (bytes of workers and batches, under 60
        % of the memory that is free here) or ladder (fixed, under 8 and 13 GiB free).
    strict
        Refuse a number of workers that the host has no room for; without it, brimful keeps it with
        a warning.
    page
        Write report.html into the record's folder.
    """
    from brimful.verbs.tune import tune as verb

    with views.progress() as watcher:
        record = verb(
            words,
            **card.chosen(),
            device=here.device,
            objective=objective,
            host_policy=host_policy,
            strict=strict,
            **common.chosen(watcher),
        )
    return views.show_plan(record, common.json, page, common.details)


@app.command(
    name="run",
    usage="Usage: brimful run [--plan RECORD] [OPTIONS] -- COMMAND...",
    help_epilogue=_example("run -- python train.py --batch-size {batch_size}"),
)
def run_command(*, running: Running = RUNNING, words: Words = ()) -> int:
    """Train with the settings that tune chose; after an out-of-memory error, start again with a
    smaller batch size.
    """
    from brimful.verbs.run import run as verb

    running.refuse_imaginary_cards()
    with views.run_progress(running.json) as watcher:
        record = verb(words, **running.chosen(), watcher=watcher)
    return views.show_run(record, running.json)


@app.command(usage="Usage: brimful report [RECORD] [OPTIONS]", help_epilogue="")
def report(
    record: str | None = None,
    /,
    *,
    out: Path | None = None,
    format: str = "html",
    home: Path | None = None,
    json: Json = False,
) -> int:
    """A record as a page: HTML, Markdown or text.

    Parameters
    ----------
    record
        A record's id or folder; the latest if none is given.
    out
        Where to write it; else report.html in the record's folder, and text to standard output.
    format
        html (one self-contained page), md (tables to paste) or text.
    home
        Where records are kept; else BRIMFUL_HOME, else .brimful here.
    json
        One JSON object with the paths of the record and of the page.
    """
    return views.show_report(record, out, format, home, json)


@app.command(help_epilogue="")
def gpus(*, prices: Path | None = None, json: Json = False) -> int:
    """The cards that brimful knows, and where each number comes from.

    Parameters
    ----------
    prices
        A file of your own prices (TOML: l4 = 0.71, in US dollars an hour), kept for later
        predictions.
    json
        One JSON object on standard output, with the source of each number.
    """
    return views.show_gpus(json, prices)


@app.command(help_epilogue="")
def doctor(
    *,
    calibrate: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    json: Json = False,
) -> int:
    """What this machine is, and what stands in the way of good measurements.

    Parameters
    ----------
    calibrate
        Measure the CUDA card of this machine: its context, what cuDNN adds, its rates. Later
        predictions for that card use them.
    json
        One JSON object on standard output.
    """
    return views.show_doctor(json, calibrate)


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code (`brimful.errors` has them)."""
    at = argv.index("--") if "--" in argv else len(argv)
    ours, words = list(argv[:at]), list(argv[at + 1 :])  # brimful's own words, the user's command
    json = "--json" in ours
    _end_children_on_signals()
    try:
        function, bound = _parse(ours, words)
        code = function(*bound.args, **bound.kwargs) or 0
        sys.stdout.flush()  # finds here, not when the interpreter ends, that a reader has gone
        return code
    except BrimfulError as error:
        return _show_error(error, json)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return _reader_has_gone()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except Exception as error:
        if isinstance(error, OSError) and DiskFull.caused(error):
            return _show_error(
                DiskFull(error.filename or "the output", kept="what is in the record so far."),
                json=False,
            )
        traceback.print_exc()
        print("This is a defect of brimful; the lines above say where.", file=sys.stderr)
        return 1


def _reader_has_gone() -> int:
    """`brimful ... | head` has enough: that is no error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _end_children_on_signals() -> None:
    """SIGTERM, and a terminal that closes (SIGHUP), end the children too: they have a session of
    their own, so neither reaches them otherwise. What ignores SIGHUP (nohup) goes on."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        signal.signal(signal.SIGHUP, _terminate)


def _terminate(number: int, frame: object) -> None:
    raise Terminated(
        problem=f"terminated ({signal.Signals(number).name})",
        explanation="brimful ended its children and keeps the record",
    )


def _parse(ours: list[str], words: list[str]) -> tuple[Callable[..., Any], Any]:
    from brimful.show.console import make_console

    app.console = make_console()
    try:
        function, bound, ignored = app.parse_args(ours, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        explanation = "brimful's own options come before the two dashes, your command after them"
        if words:
            explanation += "; the script's own settings are given as --set batch_size=64"
        raise UsageError(
            problem=" ".join(str(error).split()),
            explanation=explanation,
            suggestion="see `brimful --help`",
        ) from None
    if "words" in ignored:
        bound.arguments["words"] = tuple(words)
    elif words:
        raise UsageError(
            problem=f"a command after the two dashes: {words[0]} ...",
            explanation="this verb runs no command",
            suggestion="leave it out",
        )
    return function, bound


def _show_error(error: BrimfulError, json: bool) -> int:
    try:
        views.show_error(error, json)
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_has_gone()
    return error.exit_code
