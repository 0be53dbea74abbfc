"""Exceptions with an exit code and a hint. Warnings are no exceptions: they are
`brimful.values.Diagnostic`.

Each error has a problem (what was seen), an explanation (what it means) and a suggestion (what to
do next). The command line ends with its `exit_code`.

    0 done, 1 unexpected, 2 usage, 3 does not fit, 4 no such device, 5 the command failed,
    6 plan and machine disagree, 130 interrupted, 143 terminated
"""

import difflib
import errno
import re
from collections.abc import Iterable
from typing import ClassVar

from brimful import masking
from brimful_inside import signals

HOME_VARIABLE = "BRIMFUL_HOME"  # names the folder that brimful keeps its own files in


class BrimfulError(Exception):
    """The base of all errors that brimful raises on purpose: `problem` is one sentence with the
    facts, the rest may be empty.

    `defaults` has the three sentences of a class that stand where none is given. `str(error)` is
    the problem alone.
    """

    exit_code: ClassVar[int] = 1
    defaults: ClassVar[tuple[str, str, str]] = ("", "", "")

    def __init__(self, problem: str = "", explanation: str = "", suggestion: str = "") -> None:
        self.problem, self.explanation, self.suggestion = (
            masking.text(a or b)
            for a, b in zip((problem, explanation, suggestion), self.defaults, strict=True)
        )
        super().__init__(self.problem)

    @property
    def code(self) -> str:
        """The name of the error in JSON: DiskFull is "disk-full", UsageError "usage"."""
        return (
            re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__)
            .lower()
            .removeprefix("brimful-")
            .removesuffix("-error")
        )

    def sentences(self) -> tuple[str, ...]:
        """What is shown to a person: problem, explanation, suggestion, the empty ones left out."""
        return tuple(part for part in (self.problem, self.explanation, self.suggestion) if part)


class UsageError(BrimfulError):
    """What was typed cannot be meant: an unknown option, a batch size of 0, a placeholder nobody
    sets.
    """

    exit_code = 2


class PartMissing(UsageError):
    """A package of which only some answers are made cannot be imported."""

    def __init__(self, what: str, error: ImportError, suggestion: str) -> None:
        name = error.name or str(error)
        super().__init__(f"{what} needs {name}, which cannot be imported here", "", suggestion)


class NoSuchRecord(UsageError):
    """No record at that path or with that id."""


class DoesNotFit(BrimfulError):
    """What was asked for does not fit into the memory allowed."""

    brimful_meaning = "does-not-fit"  # `brimful_inside.wire.Failure.meaning`
    exit_code = 3


class NoSuchDevice(BrimfulError):
    """A card that the catalogue does not know, or a device that this machine does not have."""

    exit_code = 4

    def __init__(
        self, name: str, known: Iterable[str] = (), problem: str = "", suggestion: str = ""
    ) -> None:
        self.nearest = nearest(name, known)
        close = f"Nearest names: {', '.join(self.nearest)}. " if self.nearest else ""
        memory = name if re.fullmatch(r"[\d.]+ ?[KMGT]i?B?", name, re.IGNORECASE) else "20GiB"
        super().__init__(
            problem or f"There is no card called {name!r} in the catalogue.",
            suggestion=suggestion
            or f"{close}`brimful gpus` lists all cards; --gpu-memory {memory} describes your own.",
        )


class CommandFailed(BrimfulError):
    """The user's command failed; `traceback` is the script's own."""

    exit_code = 5

    def __init__(
        self, problem: str = "", explanation: str = "", suggestion: str = "", traceback: str = ""
    ) -> None:
        super().__init__(problem, explanation, suggestion)
        self.traceback = masking.text(traceback)


class NoSuchCommand(CommandFailed):
    """The program named in the command does not exist or cannot be executed."""

    exit_code = 2


class TrainingDiverged(CommandFailed):
    """A loss or a gradient became NaN or infinite; says in which step, at which learning rate, on
    which samples.
    """


class TrialFailed(CommandFailed):
    """A trial ended in a way that shows nothing about memory or speed: timed out, killed, no step
    taken.
    """


class TimeIsUp(TrialFailed):
    """The time limit of a whole search came before anything could be named."""


class ProbeNotLoaded(CommandFailed):
    """No training process of the command reported in, so brimful measured nothing."""

    defaults = (
        "brimful could not load its probe: no training process reported in",
        "brimful enters a Python process by a folder in front of PYTHONPATH. It cannot enter one "
        "started with `python -I`, `-E` or `-S`, by `env -i`, or from a shell script that "
        "overwrites PYTHONPATH.",
        "Start Python without these options; in a shell script, write PYTHONPATH=mine:$PYTHONPATH.",
    )


class Unsupported(CommandFailed):
    """The imaginary GPU met a call that it does not have."""


class PlanMismatch(BrimfulError):
    """A plan was made for another machine, card or command than the one in hand."""

    exit_code = 6


class DiskFull(BrimfulError):
    """There was no room to write on; `kept` names what is on the disk and whole."""

    @staticmethod
    def caused(error: OSError) -> bool:
        """Whether `error` is one of a full disk (or a used-up quota)."""
        return error.errno in (errno.ENOSPC, errno.EDQUOT)

    def __init__(self, path: str, kept: str, problem: str = "", suggestion: str = "") -> None:
        self.path = path
        self.kept = kept
        super().__init__(
            problem or f"The disk is full: {path} could not be written.",
            f"Kept: {kept}",
            suggestion or f"Free some space, or set {HOME_VARIABLE} to a folder on another disk.",
        )


class RecordUnreadable(BrimfulError):
    """A record is damaged elsewhere than in its last line, or is no record at all."""


class OtherSchema(RecordUnreadable):
    """A record was written by a newer or an older brimful whose entries this one does not read."""


class CheckpointUnreadable(BrimfulError):
    """A checkpoint is there and cannot be used: of a newer format, forbidden to this user, or
    damaged.
    """


class CheckpointDamaged(CheckpointUnreadable):
    """A checkpoint is incomplete, or its bytes are not those that were written."""


class OtherFormat(CheckpointUnreadable):
    """A checkpoint was written by a newer brimful than this one."""


class WireUnreadable(BrimfulError):
    """What a child process wrote cannot be read: damaged, or of another version."""


class Interrupted(BrimfulError):
    """Ctrl-C. Children are ended and the record is kept before this reaches the command line."""

    brimful_meaning = signals.INTERRUPTED  # `brimful_inside.wire.Failure.meaning`
    exit_code = 130
    defaults = ("Interrupted.", "", "")


class Terminated(BrimfulError):
    """SIGTERM, as a cluster sends before it takes a machine away."""

    brimful_meaning = signals.TERMINATED  # `brimful_inside.wire.Failure.meaning`
    exit_code = 143
    defaults = ("Terminated.", "", "")


# What a process that was told to end ends with, by the meaning of the signal.
TOLD_TO_END: dict[str, type[BrimfulError]] = {
    kind.brimful_meaning: kind for kind in (Interrupted, Terminated)
}


# What ends work before its end: what is known by then is the answer.
STOPS = (Interrupted, Terminated, TimeIsUp, KeyboardInterrupt)


class UntilStopped:
    """Work in a `with` block that ends where it is told to stop; `stop` is then what told it."""

    def __init__(self) -> None:
        self.stop: BaseException | None = None

    def __enter__(self) -> "UntilStopped":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.stop = error if isinstance(error, STOPS) else None
        return self.stop is not None


def not_writable(problem: str, error: OSError) -> UsageError:
    """Of a place that brimful keeps its own files in."""
    return UsageError(
        f"{problem}: {error.strerror or error}.",
        suggestion=f"Set {HOME_VARIABLE} to a folder you may write to.",
    )


def nearest(name: str, known: Iterable[str], count: int = 4) -> tuple[str, ...]:
    """The names in `known` most like `name`, best first, case ignored; those that contain it come
    first.
    """
    spelled = {word.lower().replace(" ", "").replace("_", "-"): word for word in known}
    asked = name.lower().replace(" ", "").replace("_", "-")
    within = sorted(word for word in spelled if asked and (asked in word or word in asked))
    close = difflib.get_close_matches(asked, list(spelled), n=count, cutoff=0.5)
    return tuple(spelled[word] for word in dict.fromkeys([*within, *close]))[:count]
