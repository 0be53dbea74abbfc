"""The programs of bench/scripts: what each one exercises and how it is started.

`make bench-scripts` predicts every one of them and writes docs/programs.md; tests/bench/test_scripts_run.py runs the light
ones. To add a program, write it as its users write theirs (no word of brimful in it) and add a line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
BOTH = ("train", "eval")


@dataclass(frozen=True)
class Program:
    """One command line: ``python [launcher] bench/scripts/<script> <flags> <batch_flag> <batch_size>``."""

    script: str  # file name in bench/scripts
    shows: str  # what it exercises, as the table says it
    batch_size: int
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # modules besides torch, by the names they are imported by
    light: bool = True  # run by `make test` as well
    phases: tuple[str, ...] = BOTH  # what a prediction must have seen
    gpu: str = "a100-40gb"
    launcher: tuple[str, ...] = ()  # what stands before the script: ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    batch_flag: str = "--batch-size"
    approximations: tuple[str, ...] = ()  # the upper bounds and assumptions that the prediction may name, and no others
    accumulation: int = 1  # batches that go into one step
    name: str = ""  # in the table; the script's stem where there is one line of it

    @property
    def key(self) -> str:
        return self.name or Path(self.script).stem

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulation

    def command(self, python: str) -> list[str]:
        script = str(SCRIPTS / self.script)
        return [python, *self.launcher, script, *self.flags, self.batch_flag, str(self.batch_size)]


PROGRAMS: tuple[Program, ...] = (
    Program(
        "mlp.py",
        "a perceptron, Adam, loaders of tensors",
        256,
        flags=("--input-size", "512", "--output-size", "32", "--depth", "3", "--architecture", "uniform"),
        phases=("train",),
    ),
    Program(
        "timm_train.py",
        "a network of timm with cudnn.benchmark, no loader",
        32,
        flags=("--model", "resnet18"),
        needs=("timm",),
        light=False,
        phases=("train",),
    ),
)


def by_key(key: str) -> Program:
    """The program of that name. Raises KeyError for an unknown one."""
    return {program.key: program for program in PROGRAMS}[key]
