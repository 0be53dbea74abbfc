"""The verbs of the command line, and how a call of one ends. What a verb takes stands in its own
module.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Literal

from cyclopts import App

from brimful import __version__, masking
from brimful.cli import views
from brimful.cli.audit import audit
from brimful.cli.check import check
from brimful.cli.compare import compare
from brimful.cli.doctor import HOST_POLICY, doctor
from brimful.cli.gpus import gpus
from brimful.cli.mcp import mcp
from brimful.cli.monitor import monitor
from brimful.cli.parse import parse
from brimful.cli.predict import predict
from brimful.cli.report import report
from brimful.cli.request import request
from brimful.cli.run import run as run_verb
from brimful.cli.tune import tune
from brimful.errors import BrimfulError, DiskFull, Terminated, UsageError

_TRAIN = "-- python train.py --batch-size"
_TWO = "'python train.py --batch-size 64' 'python train.py --batch-size 104'"
#: (the verb, how it is called, a call of it where a command follows)
VERBS: tuple[tuple[Callable[..., int], str, str], ...] = (
    (predict, "--gpu NAME [OPTIONS] -- COMMAND...", f"predict --gpu a100-40gb {_TRAIN} 64"),
    (audit, "[OPTIONS] -- COMMAND...", f"audit {_TRAIN} 64"),
    (tune, "[OPTIONS] -- COMMAND...", f"tune {_TRAIN} 64"),
    (run_verb, "[--plan RECORD] [OPTIONS] -- COMMAND...", f"run {_TRAIN} {{batch_size}}"),
    (compare, "[OPTIONS] -- 'COMMAND...' 'COMMAND...'", f"compare -- {_TWO}"),
    (check, "[JOB...] [OPTIONS]", ""),
    (request, "[--for QUEUE] [OPTIONS] -- COMMAND...", f"request --for slurm {_TRAIN} 64"),
    (monitor, "[RECORD] [OPTIONS]", ""),
    (report, "[RECORD] [OPTIONS]", ""),
    (gpus, "[OPTIONS]", ""),
    (doctor, "[OPTIONS] [-- COMMAND...]", HOST_POLICY),
    (mcp, "", ""),
)


def _example(words: str) -> str:
    if words.startswith("compare"):
        return f"Two commands, each in quotes, follow two dashes:\n\nbrimful {words}"
    return f"Your own command follows two dashes:\n\nbrimful {words}" if words else ""


app = App(
    name="brimful",
    version=__version__,
    usage="Usage: brimful VERB [OPTIONS] -- COMMAND...",
    help="Fill the GPU to the brim, and never spill.",
    help_epilogue=f"brimful {VERBS[0][2]}",
    help_formatter="plain",
)
for place, (verb, usage, example) in enumerate(VERBS):
    app.command(
        verb,
        usage=f"Usage: brimful {verb.__name__} {usage}",
        help_epilogue=_example(example),
        help_formatter="default",
        sort_key=place,
    )


@app.command(name="--install-completion", help_epilogue="")
def install_completion(*, shell: Literal["bash", "fish", "zsh"] | None = None) -> int:
    """Let your shell complete verbs, options, cards.

    Parameters
    ----------
    shell
        Your shell, where brimful cannot tell.
    """
    from cyclopts.completion.detect import ShellDetectionError

    try:
        path = app.install_completion(shell=shell)
    except ShellDetectionError:
        raise UsageError(
            "brimful cannot tell which shell this is", suggestion="name it: --shell bash"
        ) from None
    # What follows the two dashes is a command with its files, as on any line of a shell.
    text = path.read_text().replace("\ncomplete -F", "\ncomplete -o bashdefault -o default -F")
    path.write_text(text.replace(" _arguments \\\n", " _arguments '*:file:_files' \\\n"))
    print(f"{path}: a new shell reads it")
    return 0


def run(argv: Sequence[str]) -> int:
    """Runs one command line and returns its exit code (`brimful.errors` has them)."""
    at = argv.index("--") if "--" in argv else len(argv)
    ours, words = list(argv[:at]), list(argv[at + 1 :])  # brimful's own words, the user's command
    json = "--json" in ours
    masking.learn(argv)
    _leave_uvx()
    _end_children_on_signals()
    try:
        function, bound = parse(app, ours, words)
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


def _leave_uvx() -> None:
    """`uvx brimful` puts brimful's own environment first on PATH, where `python` has no torch: the
    command means the one behind it.
    """
    first, _, others = os.environ.get("PATH", "").partition(os.pathsep)
    if "UV" in os.environ and first == os.path.join(sys.prefix, "bin") and not find_spec("torch"):
        os.environ["PATH"] = others


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


def _show_error(error: BrimfulError, json: bool) -> int:
    try:
        views.show_error(error, json)
        sys.stdout.flush()
    except (
        OSError
    ):  # a reader that has gone, or a full disk: what is left is not written at the end
        _reader_has_gone()
    return error.exit_code
