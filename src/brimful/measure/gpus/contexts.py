"""The CUDA context: device memory that a process takes beside PyTorch's allocator, put together of
its parts.

- *Bare*: the driver's own tables, and a stack for every thread that the card can hold at once.
- *Kernels*: the code of those kernels that ran, PyTorch's and cuBLAS's: since CUDA 11.7 it is
loaded when it is first used.
- *cuDNN*: the same of its kernels, where a convolution runs.

A driver before 515, or CUDA_MODULE_LOADING=EAGER, loads all kernels of a library together (CUDA
Programming Guide, "Lazy Loading"): then kernels and cuDNN are several times as large, whatever
runs. PyTorch's builds for CUDA 12 and later need a driver from 525 on, so that no interval here has
room for the old ones; `loaded_at_once` gives theirs. What `brimful doctor --calibrate` measured
stands above all of it.
"""

from dataclasses import replace

from brimful.units import MIB
from brimful.values import Estimate, Gpu, Source

# MiB after the first CUDA call, by multiprocessors and the threads that each holds (CUDA
# Programming Guide, "Compute Capabilities"). All lie within `BARE_DOUBT` of a line, whose two
# constants are fitted to them. Where a card itself is in the table another driver is all the doubt:
# the same to the byte on three T4 and on an H200 on two days.
BARE_SEEN = {
    "T4": (
        40,
        1024,
        105,
        "highwaterlabs/torch-preflight, docs/vram-estimation.md: three machines, to the byte",
    ),
    "RTX 4060 Ti": (34, 1536, 107, "ggml-org/llama.cpp/pull/23604"),
    "RTX 3090": (82, 1536, 256, "invoke-ai/InvokeAI/issues/9413"),
    "RTX 6000 Ada": (142, 1536, 426, "unslothai/unsloth-zoo/pull/1053"),
    "RTX PRO 6000": (188, 1536, 555, "ggml-org/llama.cpp/pull/23604"),
    "B200": (148, 2048, 612, "unslothai/unsloth/pull/8669"),
    "H200": (132, 2048, 527, "`brimful doctor --calibrate`, 2026-11-26"),
}
FIXED_MIB, KIB_A_THREAD = 20, 1.9
BARE_DOUBT, BARE_SEEN_DOUBT = 0.12, 0.03
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536}
_MOST_THREADS = 2048  # of a multiprocessor, on the cards for data centres

# MiB: likely, least, most. On a T4 products added 26 MiB, and trainings up to 36 (torch-preflight;
# Anassbzdd/fitcheck, scripts/measure.py); on A100 with 80 GB real fine-tunings left at most 940 MiB
# for the whole context (foundation-model-stack/fms-acceleration, scripts/benchmarks/refs). Between
# the two nobody has measured: the geometric mean. On an H200 trainings added 112 to 240 MiB, and
# those of `brimful doctor --calibrate` 224 (bench/results/measured-h200-2026-11.json), with
# cuDNN's; a third more is room for kernels that none of them ran.
KERNELS_BEFORE_8 = (31, 20, 100)
KERNELS = (125, 31, 510)
KERNELS_FROM_9 = (224, 100, 300)
# Small convolutions on a T4 added 4 MiB (torch-preflight), on an H200 16: four times as much is the
# most, assumed. All of cuDNN's kernels together take 278 on an A100, loaded at once (below).
CUDNN = (16, 4, 64)

# One A100 40 GB: what GPUMemNet measured (arXiv 2602.17817) less what the allocator model replays
# for the same jobs is 1429 MiB for MLPs (bench/results/predict-a100-40gb-*.json) and 1707 MiB for
# nearly every convolution net of timm's, small or large (bench/results/timm-a100-40gb-*.json): the
# same for all, so all kernels of a library were loaded together. On other cards PyTorch's kernels
# took 362 (pytorch/pytorch/pull/86509) to 1433 MiB (an RTX 3090, pytorch/pytorch/issues/55277).
A100_AT_ONCE_MIB, A100_CUDNN_AT_ONCE_MIB = 1429, 278
AT_ONCE = (999, 362, 1433)
_GPUMEMNET = "https://arxiv.org/abs/2602.17817"


def bare_mib(capability: tuple[int, int], multiprocessors: int) -> tuple[float, float]:
    """What the first CUDA call takes, in MiB, and how far that may be off, as a share."""
    threads = _THREADS.get(capability, _MOST_THREADS)
    for seen_multiprocessors, seen_threads, mib, _ in BARE_SEEN.values():
        if (seen_multiprocessors, seen_threads) == (multiprocessors, threads):
            return mib, BARE_SEEN_DOUBT
    return FIXED_MIB + KIB_A_THREAD * multiprocessors * threads / 1024, BARE_DOUBT


def context(capability: tuple[int, int], multiprocessors: int) -> Estimate:
    """Bytes of device memory outside PyTorch's allocator, for a process that trains without a
    convolution.
    """
    kernels = (
        KERNELS_FROM_9
        if capability >= (9, 0)
        else KERNELS
        if capability >= (8, 0)
        else KERNELS_BEFORE_8
    )
    bare, _ = bare_mib(capability, multiprocessors)
    seen = f"T4: 26 MiB, A100: at most {KERNELS[2]} MiB, H200: {KERNELS_FROM_9[0]} MiB"
    return _sum(
        capability,
        multiprocessors,
        kernels,
        f"{bare:.0f} MiB bare, by seven cards; {kernels[0]} MiB of kernels, loaded at first use "
        f"({seen})",
    )


def cudnn() -> Estimate:
    """What cuDNN adds to it, in bytes."""
    likely, least, most = (mib * MIB for mib in CUDNN)
    note = (
        f"{CUDNN[1]} MiB for one convolution on a T4, {CUDNN[0]} MiB for some on an H200, "
        f"at most {CUDNN[2]} MiB assumed"
    )
    return Estimate(likely, Source.ASSUMED, least, most, note)


def loaded_at_once(gpu: Gpu) -> Gpu:
    """The card with all kernels of a library loaded together. As it is, where its context was
    measured here.
    """
    if gpu.context_bytes.source is Source.MEASURED:
        return gpu
    on_a100 = gpu.key == "a100-40gb"
    source = Source.MEASURED if on_a100 else Source.ASSUMED
    note = f"all kernels loaded at once, as on an A100 40 GB with an old driver; {_GPUMEMNET}"
    whole = Estimate(A100_AT_ONCE_MIB * MIB, source, note=note) if on_a100 else None
    return replace(
        gpu,
        context_bytes=whole or _sum(gpu.capability, gpu.multiprocessors, AT_ONCE, note),
        cudnn_bytes=Estimate(
            A100_CUDNN_AT_ONCE_MIB * MIB, source, note=f"1707 MiB with convolutions; {_GPUMEMNET}"
        ),
    )


def _sum(
    capability: tuple[int, int], multiprocessors: int, kernels: tuple[int, int, int], note: str
) -> Estimate:
    """The bare context and the code of kernels; the ends of both intervals are added."""
    bare, doubt = bare_mib(capability, multiprocessors)
    doubts = (1.0, 1 - doubt, 1 + doubt)
    value, low, high = (
        round((share * bare + more) * MIB) for share, more in zip(doubts, kernels, strict=True)
    )
    return Estimate(value, Source.ASSUMED, low, high, note)
