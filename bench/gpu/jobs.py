"""The fixed set of jobs: scripts, flags and batch sizes. Results of different months compare only
while this list stands.
"""

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
USERS_SCRIPTS = Path(__file__).parents[1] / "scripts"  # as users write theirs
MLP_FLAGS = "--input-size 4000 --output-size 100 --depth 8 --architecture uniform"


@dataclass(frozen=True)
class Job:
    """A script with its flags, at several batch sizes in ascending order."""

    name: str
    script: Path
    flags: tuple[str, ...]
    batch_sizes: tuple[int, ...]

    def arguments(self, batch_size: int) -> list[str]:
        return [*self.flags, "--batch-size", str(batch_size)]


def job(name: str, script: str, flags: str, *batch_sizes: int) -> Job:
    here = SCRIPTS / f"{script}.py"
    path = here if here.is_file() else USERS_SCRIPTS / here.name
    return Job(name, path, tuple(flags.split()), batch_sizes)


JOBS: tuple[Job, ...] = (
    job("resnet", "convnet", "", 16, 64, 192),
    job("resnet-benchmark", "convnet", "--benchmark", 16, 64, 192),
    job("resnet-amp-fp16", "convnet", "--amp fp16", 32, 256),
    job("resnet-amp-channels-last", "convnet", "--amp bf16 --channels-last", 32, 256),
    job(
        "resnet-amp-channels-last-benchmark",
        "convnet",
        "--amp bf16 --channels-last --benchmark",
        32,
        256,
    ),
    job("separable", "convnet", "--block separable --width 32 --optimizer adamw", 16, 128),
    job(
        "separable-amp-benchmark",
        "convnet",
        "--block separable --width 32 --amp fp16 --benchmark",
        16,
        128,
    ),
    job("unet", "unet_segmentation", "", 4, 16),
    job("unet-amp", "unet_segmentation", "--amp", 4, 16),
    job("gan", "dcgan", "--samples 7168", 128, 512),
    job("gpt", "gpt", "", 2, 8, 24),
    job("gpt-amp-bf16", "gpt", "--amp bf16", 2, 8, 32),
    job("gpt-amp-fp16-dropout", "gpt", "--amp fp16 --dropout 0.1", 2, 24),
    job("gpt-amp-checkpoint", "gpt", "--amp bf16 --checkpoint", 4, 48),
    job("gpt-amp-accumulate", "gpt", "--amp bf16 --accumulate 2", 2, 16),
    job("gpt-fused", "gpt", "--amp bf16 --optimizer adamw-fused", 2, 16),
    job("gpt-loop", "gpt", "--amp bf16 --optimizer adamw-loop", 2, 16),
    job(
        "gpt-long-odd-heads",
        "gpt",
        "--amp bf16 --length 2048 --width 720 --heads 9 --layers 6",
        1,
        8,
    ),
    job("encoder-amp", "checkpointed_transformer", "--epochs 1", 32, 128),
    job("lstm", "lstm_packed", "--epochs 1", 32, 128),
    job("pairwise", "pairwise", "", 256, 1024, 4096),
    job("pairwise-amp", "pairwise", "--amp bf16", 256, 4096),
    job("mlp", "mlp", f"--epochs 4 {MLP_FLAGS}", 64, 512),
)


def in_order(jobs: tuple[Job, ...] = JOBS) -> list[tuple[Job, int]]:
    """All runs: each job's smallest batch first, then each one's largest, then what lies between,
    so that a bench cut short still has every job and then every slope."""
    ends = [(job, job.batch_sizes[index]) for index in (0, -1) for job in jobs]
    between = [(job, size) for job in jobs for size in job.batch_sizes[1:-1]]
    return list(dict.fromkeys([*ends, *between]))
