"""What a command line starts: Python's script or module, or a launcher, which starts training
processes and does not train itself.
"""

from __future__ import annotations

import os
from typing import FrozenSet, NamedTuple, Optional, Sequence

_OPTIONS_WITH_A_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # of Python's own


class Launcher(NamedTuple):
    name: str
    programs: Sequence[str]
    modules: Sequence[str]
    # options without a value: of torchrun (torch/distributed/run.py; all others take one), of
    # deepspeed (launcher/runner.py, likewise), and of `accelerate launch` those that change nothing
    # for the rank itself; None: not known
    flags: Optional[FrozenSet[str]] = None


TORCHRUN = Launcher(
    "torchrun",
    ("torchrun",),
    ("torch.distributed.run", "torch.distributed.launch"),
    frozenset(("standalone", "use_env", "virtual_local_rank", "run_path")),
)
ACCELERATE = Launcher(
    "accelerate launch",
    ("accelerate", "accelerate-launch"),
    ("accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    frozenset(("multi_gpu", "same_network", "quiet", "q", "debug")),
)
DEEPSPEED = Launcher(
    "deepspeed",
    ("deepspeed",),
    ("deepspeed.launcher.runner",),
    frozenset(
        ("no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "bind_cores_to_rank", "quiet")
    ),
)
LAUNCHERS = (
    *(TORCHRUN, ACCELERATE, DEEPSPEED),
    Launcher("deepspeed on one node", (), ("deepspeed.launcher.launch",)),
    Launcher("fabric", ("fabric",), ("lightning.fabric.cli",)),
    Launcher("composer", ("composer",), ()),
    Launcher("horovodrun", ("horovodrun",), ()),
)


class PythonWords(NamedTuple):
    """The words of a command line that starts Python, up to the arguments of what it runs."""

    module: str = ""  # behind -m
    script: str = ""
    count: Optional[int] = None  # of these words; None: it runs neither
    loads_probe: bool = True  # no option keeps brimful's folder from being looked at

    @property
    def launcher(self) -> Optional[Launcher]:
        program = os.path.basename(self.script)
        return next(
            (of for of in LAUNCHERS if self.module in of.modules or program in of.programs), None
        )


def python_words(argv: Sequence[str]) -> PythonWords:
    """Of the argv of a process, whose first word is its interpreter."""
    loads_probe, words = True, iter(range(1, len(argv)))
    for at in words:
        word = argv[at]
        if word == "-m" and at + 1 < len(argv):
            return PythonWords(argv[at + 1], "", at + 2, loads_probe)
        if word in ("-c", "-", "-m"):
            break
        if word in _OPTIONS_WITH_A_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return PythonWords("", word, at + 1, loads_probe)
        else:
            loads_probe = loads_probe and not set("IES") & set(word)
    return PythonWords()


def words_of_command(argv: Sequence[str]) -> PythonWords:
    """Of a command, which may name a program in place of Python."""
    if os.path.basename(argv[0]).startswith("python"):
        return python_words(argv)
    return PythonWords("", argv[0], 1)
