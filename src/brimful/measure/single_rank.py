"""One rank of many, started without the others: the command without its launcher, and the
environment that a launcher gives.

As rank 3 of 64,
    torchrun --nproc-per-node 8 --nnodes 8 train.py --lr 1e-3
becomes
    python train.py --lr 1e-3        with RANK=3, WORLD_SIZE=64, ... in its environment
"""

from collections.abc import Sequence
from pathlib import Path

from brimful.errors import UsageError
from brimful_inside.wire import ALONE_VARIABLE

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
# Options without a value of torchrun (torch/distributed/run.py; all others take one) and of
# deepspeed (launcher/runner.py, likewise), and of `accelerate launch` those that change nothing for
# the rank itself, without and with a value.
_FLAGS = {
    "torchrun": {"standalone", "use_env", "virtual_local_rank", "run_path"},
    "deepspeed": {
        *("no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "bind_cores_to_rank"),
        *("q", "quiet"),
    },
}
_ACCELERATE_FLAGS = {"multi_gpu", "same_network", "quiet", "q", "debug"}
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
    program = Path(argv[0]).name if argv else ""
    if program.startswith("python") and len(argv) > 2 and argv[1] == "-m" and argv[2] in _MODULES:
        return _behind(_MODULES[argv[2]], argv[0], list(argv[3:]))
    if program in _FLAGS:
        return _behind(program, _python_beside(argv[0]), list(argv[1:]))
    if program == "accelerate-launch" or (program == "accelerate" and argv[1:2] == ["launch"]):
        return _behind(
            "accelerate launch", _python_beside(argv[0]), list(argv[1 if "-" in program else 2 :])
        )
    return tuple(argv), {}


def _python_beside(program: str) -> str:
    """The interpreter of the environment that a launcher's program is in."""
    beside = Path(program).with_name("python")
    return str(beside) if "/" in program and beside.exists() else "python"


def _behind(launcher: str, python: str, words: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The same for the `words` behind the launcher."""
    environment = {} if launcher in _FLAGS else {"ACCELERATE_MIXED_PRECISION": "no"}
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
        elif launcher not in _FLAGS and name not in _ACCELERATE_FLAGS | _ACCELERATE_VALUES:
            raise UsageError(
                problem=f"accelerate launch {word}",
                explanation="only accelerate's launcher knows what that does, and one rank alone "
                "is started without it",
                suggestion="leave out --as-rank, so that all ranks are started; or give the "
                "script that option itself",
            )
        elif name not in _FLAGS.get(launcher, _ACCELERATE_FLAGS):
            value = value if equals or not words else words.pop(0)
            if name == "mixed_precision":
                environment["ACCELERATE_MIXED_PRECISION"] = value
    raise UsageError(
        f"{launcher} without a script",
        "there is nothing to start",
        "name it behind the launcher's options",
    )
