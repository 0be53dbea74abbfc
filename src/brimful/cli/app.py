"""The commands and their options. Each command parses its options, calls its verb, and shows what
came of it.
"""

import os
import re
import shlex
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter, UnknownOptionError

from brimful import __version__, masking
from brimful.cli import views
from brimful.errors import BrimfulError, DiskFull, Terminated, UsageError
from brimful.units import parse_batch_size, parse_duration, parse_setting
from brimful.values import Setting
from brimful.verbs.session import Options, Watcher

TRIALS = Group("Trials", sort_key=2)
RUN = Group("Run", sort_key=2)
OUTPUT = Group("Output", sort_key=3)
WHERE = Group("Device", sort_key=1)
# of verbs
BEFORE = Group("Before training", sort_key=1)
DURING = Group("Training", sort_key=2)
AFTER = Group("Results, and this machine", sort_key=3)
OTHER = Group("Other", sort_key=4)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every verb that runs trials takes.

    Parameters
    ----------
    set_
        The value of a placeholder of your command: --set lr=3e-4 for {lr}. May be repeated.
    budget
        The most memory to use: a share of what is free (90%), or bytes (20GiB). Default: 90%, or
        all of an imaginary card.
    max_batch_size
        Never name or try a larger batch size.
    time_limit
        The longest that one trial may take (default: 10min). For tune and predict: the longest that
        the whole search may take; what is known by then is the answer.
    steps
        How many optimizer steps a trial measures. Memory trials of tune take at most two.
    batch_size_from
        Where brimful sets the batch size: flag (of the command), script (a number in its text),
        loader (where the DataLoader is made) or none (it stays as it is). auto takes the first of
        them that exists.
    home
        The folder of the records. Default: BRIMFUL_HOME, or .brimful here.
    json
        One JSON object on standard output; progress goes to standard error.
    details
        Print everything: where the memory goes, how each number was found, every trial.
    """

    set_: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--set", "-s"],
            group=TRIALS,
            metavar="NAME=VALUE",
            negative="",
            show_default=False,
        ),
    ] = ()
    budget: Annotated[str | None, Parameter(group=TRIALS, metavar="MEMORY")] = None
    max_batch_size: Annotated[str | None, Parameter(group=TRIALS, metavar="N")] = None
    time_limit: Annotated[str | None, Parameter(group=TRIALS, metavar="TIME")] = None
    steps: Annotated[str | None, Parameter(group=TRIALS, metavar="N")] = None
    batch_size_from: Annotated[str, Parameter(group=TRIALS, metavar="PLACE")] = "auto"
    home: Annotated[Path | None, Parameter(group=OUTPUT, metavar="FOLDER")] = None
    json: Annotated[
        bool, Parameter(name="--json", negative="", show_default=False, group=OUTPUT)
    ] = False
    details: Annotated[bool, Parameter(negative="", show_default=False, group=OUTPUT)] = False

    def chosen(self, watcher: Watcher) -> dict[str, Any]:
        """The settings and options as the verbs take them."""
        options = Options(
            home=self.home,
            budget=self.budget,
            max_batch_size=parse_batch_size(self.max_batch_size)
            if self.max_batch_size is not None
            else None,
            time_limit_s=parse_duration(self.time_limit) if self.time_limit is not None else None,
            steps=whole("--steps", self.steps, 1) if self.steps is not None else None,
            batch_size_from=self.batch_size_from,
            watcher=watcher,
        )
        return {"settings": dict(map(pair, self.set_)), "options": options}


def _queue_names(context: object) -> list[str]:
    """For a shell that completes --for."""
    from brimful.show.queues import QUEUES

    return list(QUEUES)


def _gpu_names(context: object) -> list[str]:
    """For a shell that completes --gpu."""
    from brimful.measure.gpus import CARDS

    return [gpu.key for gpu in CARDS]


_GPU = Parameter(group=WHERE, metavar="NAME", completer=_gpu_names)


@Parameter(name="*")
@dataclass(frozen=True)
class Card:
    """An imaginary card.

    Parameters
    ----------
    gpu
        A card of the catalogue (`brimful gpus`), which need not be here: a100-40gb, or three of
        them: a100-40gb:3, or eight in each of four machines: h100:8x4. predict compares several:
        l4,a100-80gb:1..4, or all.
    gpu_memory
        A card that is in no catalogue, by its memory: 20GiB, or three of them: 20GiB:3.
    ranks
        How many ranks the training has, where brimful is to start one of them alone: --ranks 64.
    as_rank
        With --ranks, or several machines: which rank to start. Default: 0.
    link
        What each card can send to other machines: 400Gb, 100GbE or 50GB/s.
    """

    gpu: Annotated[str | None, _GPU] = None
    gpu_memory: Annotated[str | None, Parameter(group=WHERE, metavar="MEMORY")] = None
    ranks: Annotated[int | None, Parameter(group=WHERE, metavar="N")] = None
    as_rank: Annotated[int | None, Parameter(group=WHERE, metavar="N")] = None
    link: Annotated[str | None, Parameter(group=WHERE, metavar="SPEED")] = None


Where = Annotated[
    str,
    Parameter(
        group=WHERE,
        metavar="DEVICE",
        help="auto (the accelerator that is here, else the CPU), cpu or accelerator.",
    ),
]

# of a command line that names no option
CARD, COMMON = Card(), Common()

Words = Annotated[tuple[str, ...], Parameter(parse=False)]
Json = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


def _example(words: str) -> str:
    return f"Your own command follows two dashes:\n\nbrimful {words}"


app = App(
    name="brimful",
    version=__version__,
    help="Fill the GPU to the brim, and never spill: what a training command needs, what it "
    "really does, and the settings "
    "with the highest throughput within memory.",
    help_epilogue=_example("predict --gpu a100-40gb -- python train.py --batch-size 64"),
)
app["--help"].group = app["--version"].group = (OTHER,)


@app.command(name="--install-completion", group=OTHER, help_epilogue="")
def install_completion(
    *, shell: Literal["bash", "fish", "zsh"] | None = None, output: Path | None = None
) -> int:
    """Let your shell complete verbs, options, cards.

    Parameters
    ----------
    shell
        Your shell, where brimful cannot tell.
    output
        Where to write the script; no shell loads it by itself then.
    """
    from cyclopts.completion.detect import ShellDetectionError

    try:
        path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
    except ShellDetectionError:
        raise UsageError(
            "brimful cannot tell which shell this is", suggestion="name it: --shell bash"
        ) from None
    # What follows the two dashes is a command with its files, as on any line of a shell.
    text = path.read_text().replace("\ncomplete -F", "\ncomplete -o bashdefault -o default -F")
    path.write_text(text.replace(" _arguments \\\n", " _arguments '*:file:_files' \\\n"))
    print(f"{path}: a new shell reads it")
    return 0


@app.command(group=BEFORE, usage="Usage: brimful predict --gpu NAME [OPTIONS] -- COMMAND...")
def predict(
    *,
    card: Card = CARD,
    common: Common = COMMON,
    what_if: bool | None = None,
    samples: Annotated[str | None, Parameter(metavar="N")] = None,
    solve: Annotated[str | None, Parameter(metavar="NAME")] = None,
    grid: Annotated[
        tuple[str, ...], Parameter(negative="", show_default=False, metavar="NAME=N,N,...")
    ] = (),
    sizes: Annotated[str | None, Parameter(metavar="N,N,...")] = None,
    snapshot: Annotated[Path | None, Parameter(group=OUTPUT, metavar="FILE")] = None,
    words: Words = (),
) -> int:
    """Whether a training fits a card that need not be here.

    Memory by phase, speed, and the largest batch size that fits.

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
        Find the largest value of another setting that fits: --solve max_length for the command's
        flag --max-length, or wherever {max_length} stands in it.
    grid
        Memory and speed at each of several values, as a table: --grid batch_size=1,2,4,8. Given
        twice, at every combination.
    sizes
        The batch sizes of the table that says what each means: --sizes 32,48,64. Without it,
        brimful takes some up to the largest. No further trial is run.
    snapshot
        Write the predicted run for PyTorch's memory viewer (pytorch.org/memory_viz): --snapshot
        peak.pickle.
    """
    from brimful.verbs.predict import predict as verb

    with views.progress() as watcher:
        record = verb(
            words,
            **asdict(card),
            **common.chosen(watcher),
            what_if=what_if,
            samples=whole("--samples", samples, 1) if samples is not None else None,
            solve=solve and setting_name(solve),
            grid=axes(grid),
            sizes=[parse_batch_size(size) for size in sizes.split(",")] if sizes else (),
            snapshot=snapshot,
        )
    return views.show_prediction(record, common.json, common.details)


@app.command(
    group=BEFORE,
    usage="Usage: brimful request [--for QUEUE] [OPTIONS] -- COMMAND...",
    help_epilogue=_example("request --for slurm -- python train.py --batch-size 64"),
)
def request(
    *,
    queue: Annotated[
        str | None, Parameter(name="--for", metavar="QUEUE", completer=_queue_names)
    ] = None,
    card: Card = CARD,
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """What to ask a queue for: card, cores, host memory.

    The smallest card that fits: without --gpu brimful looks at all cards that it knows and that the
    queue has a name for.

    Parameters
    ----------
    queue
        Print it as text to paste for slurm, skypilot, ray or kubernetes.
    """
    from brimful.verbs.request import request as verb

    with views.progress() as watcher:
        record, asked = verb(words, queue=queue, **asdict(card), **common.chosen(watcher))
    return views.show_request(record, asked, queue, common.json, common.details)


@app.command(
    group=BEFORE,
    usage="Usage: brimful audit [OPTIONS] -- COMMAND...",
    help_epilogue=_example("audit -- python train.py --batch-size 64"),
)
def audit(
    *,
    card: Card = CARD,
    device: Where = "auto",
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """What the script really does.

    Effective batch size, hidden caps, accumulation, repeated batches, loading.
    """
    from brimful.verbs.audit import audit as verb

    with views.progress() as watcher:
        record = verb(words, **asdict(card), device=device, **common.chosen(watcher))
    return views.show_audit(record, common.json, common.details)


@app.command(
    group=DURING,
    usage="Usage: brimful tune [OPTIONS] -- COMMAND...",
    help_epilogue=_example("tune -- python train.py --batch-size 64"),
)
def tune(
    *,
    device: Where = "auto",
    common: Common = COMMON,
    objective: Literal["throughput", "largest"] = "throughput",
    host_policy: str = "measured",
    strict: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    page: bool = True,
    words: Words = (),
) -> int:
    """The settings with the highest throughput within memory.

    Each one is run before it is named.

    Parameters
    ----------
    objective
        throughput (most samples a second) or largest (the largest batch size that fits).
    host_policy
        How brimful limits the loader workers: measured (their bytes and those of their batches take
        at most 60 % of the free memory here) or ladder (a fixed number with under 8 GiB free, and
        with under 13 GiB).
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
            device=device,
            objective=objective,
            host_policy=host_policy,
            strict=strict,
            **common.chosen(watcher),
        )
    return views.show_plan(record, common.json, page, common.details)


@app.command(
    group=DURING,
    usage="Usage: brimful compare [OPTIONS] -- 'COMMAND...' 'COMMAND...'",
    help_epilogue="Two commands, each in quotes, follow two dashes:\n\n"
    "brimful compare -- 'python train.py --batch-size 64' 'python train.py --batch-size 104'",
)
def compare(
    record: str | None = None,
    *,
    plan: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    minutes: Annotated[str | None, Parameter(metavar="N")] = None,
    samples: Annotated[str | None, Parameter(metavar="N")] = None,
    to_end: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    pairs: Annotated[str, Parameter(metavar="N")] = "2",
    page: bool = True,
    gpu: Annotated[str | None, _GPU] = None,
    gpu_memory: Annotated[str | None, Parameter(group=WHERE, metavar="MEMORY")] = None,
    device: Where = "auto",
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """Two ways to train beside each other.

    Speed, memory, and how soon they come to the same loss.

    Parameters
    ----------
    record
        With --plan: the record of `brimful tune` whose plan is meant.
    plan
        Compare the command with its own settings, and with the plan that `brimful tune` left of it.
    minutes
        How long each run trains, not counting what comes before its first step (default: 2).
    samples
        How many samples each run trains on, in place of a time.
    to_end
        Run both to their end.
    pairs
        How often both are run, by turns. Where the command takes a seed, each pair has its own.
    page
        Write report.html into the record's folder.
    gpu
        Compare predictions of memory and time for this card, which need not be here.
    gpu_memory
        The same for a card that is in no catalogue, by its memory.
    """
    from brimful.verbs.compare import Until
    from brimful.verbs.compare import compare as verb

    if [minutes, samples, to_end or None].count(None) < 2:
        raise UsageError("--minutes, --samples and --to-end exclude each other", "name one of them")
    until = None
    if minutes or samples or to_end:
        until = Until(
            parse_duration(f"{minutes}min") if minutes else None,
            whole("--samples", samples, 1) if samples else None,
        )
    with views.progress() as watcher:
        compared = verb(
            words,
            record=record,
            plan=plan,
            gpu=gpu,
            gpu_memory=gpu_memory,
            device=device,
            until=until,
            pairs=whole("--pairs", pairs, 1),
            **common.chosen(watcher),
        )
    return views.show_comparison(compared, common.json, page, common.details)


@app.command(
    name="run",
    group=DURING,
    usage="Usage: brimful run [--plan RECORD] [OPTIONS] -- COMMAND...",
    help_epilogue=_example("run -- python train.py --batch-size {batch_size}"),
)
def run_command(
    *,
    plan: Annotated[str | None, Parameter(group=RUN, metavar="RECORD")] = None,
    strict: Annotated[bool, Parameter(group=RUN, negative="", show_default=False)] = False,
    set_: Annotated[
        tuple[str, ...],
        Parameter(
            name=["--set", "-s"], group=RUN, metavar="NAME=VALUE", negative="", show_default=False
        ),
    ] = (),
    max_restarts: Annotated[str, Parameter(group=RUN, metavar="N")] = "10",
    resume_with: Annotated[
        str | None, Parameter(group=RUN, metavar="WORDS", allow_leading_hyphen=True)
    ] = None,
    fresh: Annotated[bool, Parameter(group=RUN, negative="", show_default=False)] = False,
    ladder: Annotated[str | None, Parameter(group=RUN, metavar="N,N,...")] = None,
    grace: Annotated[str, Parameter(group=RUN, metavar="TIME")] = "90s",
    batch_size_from: Annotated[str, Parameter(group=RUN, metavar="PLACE")] = "auto",
    host_limit: Annotated[str | None, Parameter(group=RUN, metavar="MEMORY")] = None,
    device: Annotated[str | None, Parameter(group=WHERE, metavar="DEVICE")] = None,
    gpu: Annotated[str | None, Parameter(group=WHERE, metavar="NAME", show=False)] = None,
    gpu_memory: Annotated[str | None, Parameter(group=WHERE, metavar="MEMORY", show=False)] = None,
    home: Annotated[Path | None, Parameter(group=OUTPUT, metavar="FOLDER")] = None,
    json: Annotated[
        bool, Parameter(name="--json", negative="", show_default=False, group=OUTPUT)
    ] = False,
    words: Words = (),
) -> int:
    """Train with the settings that tune chose.

    After an out-of-memory error it starts again with a smaller batch size.

    Parameters
    ----------
    plan
        A record of `brimful tune`, `latest` (the newest of this command) or `none`. Without it and
        without --set: the newest of this command that is for this machine, if there is one.
    strict
        Refuse a plan that was tuned with another seed, output folder, run name or number of epochs;
        without it, brimful lists such differences and follows the plan.
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
    ladder
        The batch sizes that you trust, tried in this order after out of memory: --ladder 96,80,64.
        Without it brimful takes one that is known to fit, by trials, predictions or earlier runs,
        else half.
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
    from brimful.verbs.run import run as verb

    if gpu is not None or gpu_memory is not None:
        raise UsageError(
            problem=f"brimful run --gpu {gpu or gpu_memory}",
            explanation="an imaginary card computes nothing, so nothing can be trained on it",
            suggestion="ask `brimful predict` or `brimful tune` for that card, and run the "
            "plan on a real one",
        )
    with views.run_progress(json) as watcher:
        record = verb(
            words,
            plan=plan,
            strict=strict,
            settings=dict(map(pair, set_)),
            device=device,
            max_restarts=whole("--max-restarts", max_restarts, 0),
            resume_with=resume_with,
            fresh=fresh,
            ladder=ladder,
            grace_s=parse_duration(grace),
            host_limit=host_limit,
            options=Options(home=home, batch_size_from=batch_size_from),
            watcher=watcher,
        )
    return views.show_run(record, json)


@app.command(group=DURING, usage="Usage: brimful monitor [RECORD] [OPTIONS]", help_epilogue="")
def monitor(
    record: str | None = None,
    /,
    *,
    pid: str | None = None,
    once: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    home: Path | None = None,
    json: Json = False,
) -> int:
    """A run at hand, live: its memory, speed, findings, and its machine.

    Parameters
    ----------
    record
        A record's id or folder, or the folder of a training on the engine; without it the newest
        that is going on, else the newest.
    pid
        Any process by its number: the machine's side alone.
    once
        Print how it stands now, and end.
    home
        Where records are kept; else BRIMFUL_HOME, else .brimful here.
    json
        How it stands now as one JSON object.
    """
    from brimful.verbs.monitor import Monitor

    process = whole("--pid", pid, 1) if pid is not None else None
    return views.show_monitor(Monitor(record, process, home).read, once, json)


@app.command(group=BEFORE, usage="Usage: brimful check [JOB...] [OPTIONS]", help_epilogue="")
def check(
    *jobs: str,
    update: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    markdown: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    snapshot: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    home: Path | None = None,
    json: Json = False,
) -> int:
    """Memory as a test: what grew, and which line did it.

    Ends with exit code 3 where a job of brimful.toml passes a limit beside its baseline.

    Parameters
    ----------
    jobs
        Names of jobs of brimful.toml, or of [tool.brimful] in pyproject.toml; all if none is given.
    update
        Write what is predicted to brimful.lock.json, the baseline of later calls, to be committed.
    markdown
        Print Markdown, for the comment of a pull request.
    snapshot
        Write each job's predicted run to this folder, for PyTorch's memory viewer.
    home
        Where records are kept; else BRIMFUL_HOME, else .brimful here.
    json
        One JSON object on standard output.
    """
    from brimful.verbs.check import check as verb

    with views.progress() as watcher:
        record = verb(
            jobs,
            update=update,
            snapshot=snapshot,
            options=Options(home=home, watcher=watcher),
        )
    return views.show_check(record, json, markdown)


@app.command(group=AFTER, usage="Usage: brimful report [RECORD] [OPTIONS]", help_epilogue="")
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


@app.command(group=BEFORE, help_epilogue="")
def gpus(*, prices: Path | None = None, json: Json = False) -> int:
    """The cards that brimful knows.

    With where each number comes from.

    Parameters
    ----------
    prices
        A file of your own prices (TOML: l4 = 0.71, in US dollars an hour), kept for later
        predictions.
    json
        One JSON object on standard output, with the source of each number.
    """
    return views.show_gpus(json, prices)


_HOST_POLICY = "doctor --host-policy -- python train.py --batch-size 64"


@app.command(
    group=AFTER,
    usage="Usage: brimful doctor [OPTIONS] [-- COMMAND...]",
    help_epilogue=_example(_HOST_POLICY),
)
def doctor(
    *,
    calibrate: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    host_policy: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    card: Card = CARD,
    device: Where = "auto",
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """What this machine is, and what disturbs measurements on it.

    Parameters
    ----------
    calibrate
        Measure the CUDA card of this machine: its context, what cuDNN adds, its rates. Later
        predictions for that card use them.
    host_policy
        Run your command for a few steps, and show batch sizes, loader workers, pinned memory and
        batches made ahead: what is requested, what the script does, what this machine has room
        for, and why. The options below belong to that run.
    """
    nothing = (card, device, replace(common, json=False), words) == (CARD, "auto", COMMON, ())
    if not (words and not calibrate if host_policy else nothing):
        raise UsageError(
            "--host-policy and a command belong together",
            "brimful doctor runs your command for a few steps to see what it asks of this machine; "
            "without both it looks at the machine alone",
            f"for instance:\nbrimful {_HOST_POLICY}",
        )
    if not host_policy:
        return views.show_doctor(common.json, calibrate)
    from brimful.verbs.audit import audit as verb

    with views.progress() as watcher:
        chosen = {**asdict(card), **common.chosen(watcher), "device": device}
        record = verb(words, host_policy=True, **chosen)
    return views.show_audit(record, common.json, common.details)


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code (`brimful.errors` has them)."""
    at = argv.index("--") if "--" in argv else len(argv)
    ours, words = list(argv[:at]), list(argv[at + 1 :])  # brimful's own words, the user's command
    json = "--json" in ours
    masking.learn(argv)
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
        if isinstance(error, OSError) and (explained := _explained(error)) is not None:
            return _show_error(explained, json and not isinstance(explained, DiskFull))
        traceback.print_exc()
        print("This is a defect of brimful; the lines above say where.", file=sys.stderr)
        return 1


def _explained(error: OSError) -> BrimfulError | None:
    """What is no defect of brimful, wherever it was met."""
    if DiskFull.caused(error):
        return DiskFull(error.filename or "the output", kept="what is in the record so far.")
    with suppress(FileNotFoundError):
        os.getcwd()
        return None
    return UsageError("The working folder is not there any more.", suggestion="Change to another.")


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
    raise Terminated(f"terminated ({signal.Signals(number).name})")


def _parse(ours: list[str], words: list[str]) -> tuple[Callable[..., Any], Any]:
    from brimful.show.console import make_console

    app.console = make_console()
    ours = _NEGATIVE.sub(r"\1=", "\0".join(ours)).split("\0") if ours else []
    try:
        function, bound, ignored = _parsed(ours)
    except CycloptsError as error:
        raise _not_understood(error, ours, words) from None
    if "words" in ignored:
        if words and _is_quoted(words[0]) and function is not compare:
            raise UsageError(
                f"your command is one word in quotes: {words[0]!r}",
                "there is no program of that name; without the quotes its words are the command",
                f"type:\n{shlex.join(['brimful', *ours, '--'])} " + _unquoted(words),
            )
        bound.arguments["words"] = tuple(words)
    elif words:
        verb = ours[0] if ours else ""
        raise UsageError(
            problem=f"there is a command after the two dashes: {words[0]} ...",
            explanation=f"brimful {verb} runs no command" if verb else "no verb stands before them",
            suggestion="leave it out" if verb else _a_verb(words),
        )
    return function, bound


def _is_quoted(word: str) -> bool:
    return len(word.split()) > 1 and shutil.which(word) is None


def _unquoted(words: list[str]) -> str:
    """A command to type, whose first word may be all of one in quotes."""
    first = words[0] if _is_quoted(words[0]) else shlex.quote(words[0])
    return " ".join([first, *map(shlex.quote, words[1:])])


def _parsed(ours: list[str]) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    return app.parse_args(ours, exit_on_error=False, print_error=False)


def _not_understood(error: CycloptsError, ours: list[str], words: list[str]) -> UsageError:
    verb, problem = ours[0], " ".join(str(error).split())
    for cyclopts_words, plain in _PLAIN:
        problem = re.sub(cyclopts_words, plain, problem)
    if verb not in app:
        is_command = not verb.startswith("-") and "Did you mean" not in problem
        todo = _a_verb([*ours, *words]) if is_command else "see `brimful --help`"
        return UsageError(problem, suggestion=todo)
    if (at := _start_of_a_command(ours)) is not None:
        return UsageError(
            f"two dashes are missing before your command ({ours[at]} ...)",
            "without them brimful reads the command's words as its own options",
            f"type:\n{shlex.join(['brimful', *ours[:at], '--'])} "
            + _unquoted([*ours[at:], *words]),
        )
    explanation = (
        "brimful's own options come before the two dashes, your command after them; the script's "
        "own settings are given as --set batch_size=64"
        if isinstance(error, UnknownOptionError)
        else ""
    )
    return UsageError(problem, explanation, f"see `brimful {verb} --help`")


# An option, and a number below zero behind it, which is its value.
_NEGATIVE = re.compile(r"((?:^|\0)--[^=\0]+)\0(?=-[0-9.])")
# What cyclopts says of a mistake, and the same in plain words.
_PLAIN = (
    (r'^Command "\S+" parameter (\S+) requires an argument\.$', r"\1 has no value"),
    (r"^Unused Tokens: \[(.*)\]\.$", r"more words than it takes: \1"),
    (r'unable to convert (".*") into int', r"\1 is no whole number"),
    (r'unable to convert (".*") into bool', r"\1 is neither yes nor no"),
)


def _start_of_a_command(ours: list[str]) -> int | None:
    """Where a command begins that no two dashes announce: behind words that a verb understands
    alone; None where there is none.
    """
    for at in (at for at, word in enumerate(ours) if at and not word.startswith("-")):
        with suppress(CycloptsError):
            return at if "words" in _parsed(ours[:at])[2] else None
    return None


def _a_verb(words: Sequence[str]) -> str:
    return "say what brimful is to do with it, for instance:\n" + shlex.join(
        ["brimful", "predict", "--gpu", "a100-40gb", "--", *words]
    )


def _show_error(error: BrimfulError, json: bool) -> int:
    try:
        views.show_error(error, json)
        sys.stdout.flush()
    except BrokenPipeError:
        _reader_has_gone()
    return error.exit_code


# --- what the words of an option mean ---

_MOST_DIGITS = 15  # more than anything that is counted here has


def whole(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least:
        raise UsageError(f"{name} {text[:80]}", f"it takes a whole number, {least} or more")
    return int(text)


def setting_name(text: str) -> str:
    """The name of a setting, also where it was written as the script's flag is: max-length."""
    return text.strip().replace("-", "_")


def pair(text: str) -> tuple[str, Setting]:
    written, equals, value = text.partition("=")
    name = setting_name(written)
    if not equals or not name.isidentifier():
        raise UsageError(
            f"--set {text}", "a setting is given as name=value", "for instance --set lr=3e-4"
        )
    if name.endswith("batch_size"):
        return name, parse_batch_size(value)
    return name, parse_setting(value)


def axes(texts: Sequence[str]) -> dict[str, tuple[Setting, ...]]:
    """The sides of a table, each as name=value,value."""
    sides: dict[str, tuple[Setting, ...]] = {}
    for text in texts:
        written, equals, values = text.partition("=")
        name = setting_name(written)
        parts = [part.strip() for part in values.split(",")]
        if not equals or not name.isidentifier():
            raise UsageError(
                f"--grid {text}",
                "a side of a table is name=value,value",
                "for instance --grid batch_size=1,2,4",
            )
        if not all(parts):
            raise UsageError(
                f"--grid {text}: a value is missing",
                "values stand between commas",
                f"as in --grid {name}=1,2,4",
            )
        if name in sides:
            raise UsageError(
                f"--grid {name} was given twice",
                "a setting is one side of the table",
                "give its values together",
            )
        sides[name] = tuple(pair(f"{name}={part}")[1] for part in parts)
        twice = next((part for part in sides[name] if sides[name].count(part) > 1), None)
        if twice is not None:
            raise UsageError(
                f"--grid {text} has {twice} twice",
                "each value is one line of the table",
                "leave one out",
            )
    return sides
