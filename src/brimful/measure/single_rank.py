"""One rank of many, started without the others: the command without its launcher, and the environment that a launcher gives.

torchrun --nproc-per-node 8 --nnodes 8 train.py --lr 1e-3   as rank 3 of 64   ->   python train.py --lr 1e-3, RANK=3 ...
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brimful.errors import UsageError
from brimful_inside.wire import ALONE_VARIABLE

__all__ = ["alone_environment", "without_launcher"]

_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE = ("accelerate.commands.launch",)
# Options without a value of torchrun (torch/distributed/run.py), and of `accelerate launch` those that change nothing for the
# rank itself. All other options of torchrun take a value.
_TORCHRUN_FLAGS = {
    *("--standalone", "--use-env", "--use_env", "--virtual-local-rank", "--virtual_local_rank", "--run-path", "--run_path"),
}
_ACCELERATE_FLAGS = {"--multi_gpu", "--multi-gpu", "--same_network", "--quiet", "-q", "--debug"}
_ACCELERATE_VALUES = {
    *("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "gpu_ids"),
    *("mixed_precision", "dynamo_backend", "num_cpu_threads_per_process", "max_restarts", "monitor_interval", "tee", "role"),
}


def alone_environment(ranks: int, as_rank: int, cards: int) -> dict[str, str]:
    """What a launcher would have put into the rank's environment; `cards` are those of a node, one for each of its ranks."""
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

    A command without a launcher stays as it is. Raises UsageError for options of `accelerate launch` that would change what
    the rank does and that only its launcher understands.
    """
    words = list(argv)
    program = Path(words[0]).name if words else ""
    if program in ("torchrun", "torchrun.exe"):
        return _behind_torchrun(_python_beside(words[0]), words[1:]), {}
    if program == "accelerate" and words[1:2] == ["launch"]:
        return _behind_accelerate(_python_beside(words[0]), words[2:])
    if program == "accelerate-launch":
        return _behind_accelerate(_python_beside(words[0]), words[1:])
    if program.startswith("python") and words[1:2] == ["-m"] and len(words) > 2:
        if words[2] in _TORCHRUN:
            return _behind_torchrun(words[0], words[3:]), {}
        if words[2] in _ACCELERATE:
            return _behind_accelerate(words[0], words[3:])
    return tuple(words), {}


def _python_beside(program: str) -> str:
    """The interpreter of the environment that a launcher's program is in."""
    beside = Path(program).with_name("python")
    return str(beside) if "/" in program and beside.exists() else "python"


def _behind_torchrun(python: str, words: list[str]) -> tuple[str, ...]:
    start = [python]
    while words:
        word = words.pop(0)
        if word in ("-m", "--module"):
            return (*start, "-m", *words)
        if word in ("--no-python", "--no_python"):
            start = []
        elif not word.startswith("-"):
            return (*start, word, *words)
        elif word not in _TORCHRUN_FLAGS and "=" not in word and words:
            words.pop(0)
    raise _no_script("torchrun")


def _behind_accelerate(python: str, words: list[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    environment = {"ACCELERATE_MIXED_PRECISION": "no"}
    start = [python]
    while words:
        word = words.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word in ("-m", "--module"):
            return (*start, "-m", *words), environment
        if word in ("--no_python", "--no-python"):
            start = []
        elif not word.startswith("-"):
            return (*start, word, *words), environment
        elif name in _ACCELERATE_VALUES:
            value = value if equals or not words else words.pop(0)
            if name == "mixed_precision":
                environment["ACCELERATE_MIXED_PRECISION"] = value
        elif word not in _ACCELERATE_FLAGS:
            raise UsageError(
                problem=f"accelerate launch {word}",
                explanation="only accelerate's launcher knows what that does, and one rank alone is started without it",
                suggestion="leave out --as-rank, so that all ranks are started; or give the script that option itself",
            )
    raise _no_script("accelerate launch")


def _no_script(launcher: str) -> UsageError:
    return UsageError(
        problem=f"{launcher} without a script", explanation="there is nothing to start", suggestion="name it behind the options"
    )
