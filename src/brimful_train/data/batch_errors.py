"""Memory that runs out while a batch is made: in the data set, in its collate, in a worker of the
loader.

Another resource may run out there (/dev/shm, the file descriptors), which is no want of memory.
Either ends the training: the loader has used up that batch and gives the next one, and it makes
whole micro-batches, so that neither to try again nor to split the micro-batch helps.
"""

import contextlib
import re
from collections.abc import Iterator

from brimful.errors import BrimfulError, CommandFailed, DoesNotFit
from brimful_inside.signals import signal_of_a_worker
from brimful_inside.simulator.oom_patterns import HOST, match_oom, qualified_name

# torch.utils.data on a dead worker: its SIGCHLD handler's words, which raises wherever the main
# thread is, and the loader's.
_DEAD = re.compile(
    r"DataLoader worker \(pid(\(s\))? [\d, ]+\) (is killed by signal|exited unexpectedly)"
)
_BUS_ERROR = "is killed by signal: Bus error"
# An error of a worker or of the pinning thread, raised again in the main one.
_CAUGHT = re.compile(r"^Caught \S+ (in .*?)\.?$", re.MULTILINE)
_KEPT = "The last checkpoint stays as it is."
_LESS = (
    "Use fewer workers (data.workers), a smaller data.prefetch or a smaller micro-batch, or give "
    "the process more memory."
)


class BatchNotMade(DoesNotFit):
    """Memory ran out while a batch was being made. Unlike another DoesNotFit it may fit with a
    smaller micro-batch.
    """

    brimful_meaning = "smaller-fits"  # `brimful_inside.wire.Failure.meaning`


class BatchMemoryError(BatchNotMade):
    """The host's memory. By this name (``…MemoryError``) a probe of brimful recognises it."""


class SharedMemoryFull(CommandFailed):
    """A worker found no room in /dev/shm. Memory may be free, and no smaller micro-batch is a
    remedy. A probe of brimful recognises the words that it quotes.
    """


class WorkerDied(CommandFailed):
    """A worker of a loader ended before its time, for a reason that it took with it."""


@contextlib.contextmanager
def batches_are_made() -> Iterator[None]:
    """Around the making of batches. Raises BatchNotMade where memory is missing and WorkerDied
    where a worker is; all other errors as they are."""
    try:
        yield
    except BrimfulError:
        raise
    except Exception as error:
        ends_with = dead_worker(error) or _missing_memory(error)
        if ends_with is None:
            raise
        raise ends_with from error


def dead_worker(error: BaseException) -> BrimfulError | None:
    """What a training ends with where `error` is of a loader's dead worker; None for any other
    error.
    """
    if isinstance(error, OSError | EOFError) and (number := signal_of_a_worker(error)):
        return WorkerDied(
            f"A worker of the loader was ended by signal {number} while it handed over a batch.",
            f"One that the system killed for want of memory prints nothing. {_KEPT}",
            "If it was memory: fewer workers (data.workers) or a smaller micro-batch.",
        )
    if not isinstance(error, RuntimeError):
        return None
    # The loader's own error follows from that of the signal handler, which says more.
    messages = [message for message in map(str, (error.__cause__, error)) if _DEAD.search(message)]
    if not messages:
        return None
    words = first_line(messages[0])
    if _BUS_ERROR in words:
        return SharedMemoryFull(
            f"/dev/shm ran full while a batch was being made: {words}",
            f"Workers hand over their batches through it. This one is lost with it. {_KEPT}",
            "Give it more room (Docker: --shm-size=8g), or use fewer workers (data.workers) or a "
            "smaller data.prefetch.",
        )
    return WorkerDied(
        f"A worker of the loader died while it made batches: {words}",
        "What it printed says why; one that the system killed for want of memory prints "
        f"nothing. {_KEPT}",
        "Try data.workers=0, where the error itself is shown. If it was memory: fewer workers or "
        "a smaller micro-batch.",
    )


def _missing_memory(error: Exception) -> BatchNotMade | None:
    message = str(error)
    pattern = match_oom(qualified_name(type(error)), message)
    if pattern is None and type(error) is RuntimeError and _CAUGHT.match(message):
        # of a type that could not be made again here, such as numpy's: the traceback has it
        pattern = match_oom("", message)
    if pattern is None:
        return None
    explanation = (
        "It is not the step that lacks it: to put fewer samples through the model at once makes "
        f"no batch smaller. {_KEPT}"
    )
    if pattern.kind == HOST:
        return BatchMemoryError(
            f"Memory ran out while a batch was being made on the host: {_words(error)}",
            explanation,
            _LESS,
        )
    return BatchNotMade(
        f"The device's memory ran out while a batch was being made: {_words(error)}",
        explanation,
        "Let the data set make its samples on the host (the engine takes them to the device), or "
        "use a smaller micro-batch.",
    )


def _words(error: Exception) -> str:
    """One line; of an error that a worker met, the line that names it, and where."""
    message = str(error).strip()
    caught = _CAUGHT.match(message)
    if caught is not None:
        return f"{message.splitlines()[-1].strip()} ({caught.group(1)})"
    return f"{type(error).__name__}: {first_line(message)}" if message else type(error).__name__


def first_line(message: str) -> str:
    return (message.strip().splitlines() or [""])[0].strip()
