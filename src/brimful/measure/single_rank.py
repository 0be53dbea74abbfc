"""One rank of many, started without the others: the command without its launcher, and the
environment that a launcher gives.

As rank 3 of 64,
    torchrun --nproc-per-node 8 --nnodes 8 train.py --lr 1e-3
becomes
    python train.py --lr 1e-3        with RANK=3, WORLD_SIZE=64, ... in its environment
"""

from collections.abc import Sequence, Set
from pathlib import Path

from brimful.errors import UsageError
from brimful_inside.launchers import ACCELERATE, Launcher, words_of_command
from brimful_inside.wire import ALONE_VARIABLE

# Options of `accelerate launch` with a value that change nothing for the rank itself.
_ACCELERATE_VALUES = {
    *(
        "num_processes",
        "num_machines",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "rdzv_backend",
        "gpu_ids",
    ),
    *(
        "mixed_precision",
        "dynamo_backend",
        "num_cpu_threads_per_process",
        "max_restarts",
        "monitor_interval",
        "tee",
        "role",
    ),
}


def alone_environment(ranks: int, as_rank: int, cards: int) -> dict[str, str]:
    """What a launcher would have put into the rank's environment; `cards` are those of a node, one
    for each of its ranks.
    """
    on_node = min(ranks, cards)
    return {
        ALONE_VARIABLE: "1",
        "RANK": str(as_rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(as_rank % on_node),
        "LOCAL_WORLD_SIZE": str(on_node),
        "GROUP_RANK": str(as_rank // on_node),
        "GROUP_WORLD_SIZE": str(-(-ranks // on_node)),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "brimful",
    }


def without_launcher(argv: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """(the command that a launcher would start as each rank, what it would add to the environment).

    A command without a launcher stays as it is. Raises UsageError for options of `accelerate
    launch` that would change what the rank does and that only its launcher understands.
    """
    words = words_of_command(argv)
    launcher, behind = words.launcher, list(argv[words.count :])
    is_verb = launcher is ACCELERATE and behind[:1] == ["launch"]
    if launcher is None or launcher.flags is None:
        return tuple(argv), {}
    if Path(words.script).name == "accelerate" and not is_verb:
        return tuple(argv), {}  # another of its verbs
    python = _python_beside(argv[0]) if words.script == argv[0] else argv[0]
    return _behind(launcher, launcher.flags, python, behind[is_verb:])


def _python_beside(program: str) -> str:
    """The interpreter of the environment that a launcher's program is in."""
    beside = Path(program).with_name("python")
    return str(beside) if "/" in program and beside.exists() else "python"


def _behind(
    launcher: Launcher, flags: Set[str], python: str, words: list[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The same for the `words` behind the launcher."""
    environment = {"ACCELERATE_MIXED_PRECISION": "no"} if launcher is ACCELERATE else {}
    start = [python]
    while words:
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word in ("-m", "--module"):
            return (*start, "-m", *words), environment
        if not word.startswith("-"):
            return (*start, word, *words), environment
        if name == "no_python":
            start = []
        elif launcher is ACCELERATE and name not in flags | _ACCELERATE_VALUES:
            raise UsageError(
                problem=f"accelerate launch {word}",
                explanation="only accelerate's launcher knows what that does, and one rank alone "
                "is started without it",
                suggestion="leave out --as-rank, so that all ranks are started; or give the "
                "script that option itself",
            )
        elif name not in flags:
            value = value if equals or not words else words.pop(0)
            if name == "mixed_precision":
                environment["ACCELERATE_MIXED_PRECISION"] = value
    raise UsageError(
        f"{launcher.name} without a script",
        "there is nothing to start",
        "name it behind the launcher's options",
    )
