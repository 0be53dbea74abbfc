"""The trainings: scripts, flags and batch sizes. Step times of different months compare only while
`JOBS` stands; rows of memory are of the largest sizes of some of them, and of networks that nobody
chose.
"""

import itertools
import random
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


CHOSEN = ("resnet-benchmark", "resnet-amp-channels-last", "separable", "gpt-amp-fp16-dropout")
CHOSEN += ("gpt-amp-checkpoint", "encoder-amp", "pairwise-amp", "lstm")


def drawn(seed: int, size: int) -> Job:
    """A transformer (odd seeds) or a convolutional network that nobody chose, and how it trains."""
    draw = random.Random(seed).choice
    heads, width = draw((4, 6, 8, 12)), draw((32, 64, 80))
    image = draw((96, 128, 160, 224))
    transformer = f"--layers {draw((2, 4, 6))} --heads {heads} --width {heads * width}"
    transformer += f" --groups {draw((1, 2, heads))} --length {draw((128, 200, 256, 509))}"
    transformer += f" --vocabulary {draw((8192, 32000, 50257))} --dropout {draw((0.0, 0.1))}"
    transformer += draw(("", " --gated")) + draw(("", " --root-mean-square"))
    transformer += draw(("", "", " --checkpoint")) + draw(("", " --accumulate 2"))
    convolution = f"--block {draw(('plain', 'separable'))} --width {draw((16, 32, 48))}"
    convolution += f" --depth {draw((1, 2, 3))} --image-size {image}"
    convolution += draw(("", " --channels-last")) + draw(("", " --benchmark"))
    name, script, flags = ("transformer", "gpt", transformer)
    if not seed % 2:
        name, script, flags = ("convolution", "convnet", convolution)
    optimizer = draw(("sgd", "adamw", "adamw-fused", "adamw-loop"))
    flags += f" --amp {draw(('bf16', 'bf16', 'fp16', 'none'))} --optimizer {optimizer} --steps 6"
    return job(f"{name} {seed}", script, flags, size)


def memory_jobs(seeds: tuple[int, ...]) -> list[tuple[Job, int]]:
    """The largest sizes of the jobs that are `CHOSEN`, by turns with the networks of the seeds."""
    chosen = [of for of in JOBS if of.name in CHOSEN]
    networks = [drawn(seed, 24 if seed % 2 else 48) for seed in seeds]
    pairs = itertools.zip_longest(networks, chosen)
    return [(of, of.batch_sizes[-1]) for pair in pairs for of in pair if of is not None]


# Small steps of the same trainings: the edge lies where memory does, whatever a step takes.
SMALL = "--layers 6 --width 384 --heads 6 --length 256 --steps 5"
EDGES: tuple[Job, ...] = (
    job("gpt-small", "gpt", f"{SMALL} --amp bf16"),
    job("gpt-amp-checkpoint", "gpt", "--amp bf16 --checkpoint --steps 5"),
    job("gpt-fused-dropout", "gpt", "--amp bf16 --dropout 0.1 --optimizer adamw-fused --steps 5"),
    job("resnet-amp-channels-last", "convnet", "--amp bf16 --channels-last --benchmark --steps 5"),
    job("separable", "convnet", "--block separable --width 32 --optimizer adamw --steps 5"),
    job("pairwise", "pairwise", "--steps 5"),
    drawn(8, 8),
    drawn(9, 8),
)


def in_order(jobs: tuple[Job, ...] = JOBS) -> list[tuple[Job, int]]:
    """All runs: each job's smallest batch first, then each one's largest, then what lies between,
    so that a bench cut short still has every job and then every slope."""
    ends = [(job, job.batch_sizes[index]) for index in (0, -1) for job in jobs]
    between = [(job, size) for job in jobs for size in job.batch_sizes[1:-1]]
    return list(dict.fromkeys([*ends, *between]))
