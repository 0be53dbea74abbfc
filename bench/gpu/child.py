"""One training script in a process of its own, on a real card or an imaginary one, and what it
took.

    python -m bench.gpu.child real[:<bytes>] <result file> <script> [its arguments]
    python -m bench.gpu.child <card.json> <result file> <script> [its arguments]

The script is run as `python script ...` runs it. The standard library, torch and brimful_inside
are enough. `<bytes>`: the most that PyTorch may hold of the card. The result is JSON: peaks in
bytes, seconds of each step after the warm-up (between ends of steps, by CUDA events), and the
settings in force.
"""

import gzip
import itertools
import json
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

WARMUP_STEPS = 3


class Steps:
    """Calls `on_step` with the number of each step of the first optimizer that steps: it
    sets the pace.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.count = 0
        self._on_step = on_step
        self._pace: int | None = None

    def __call__(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self._pace in (None, id(optimizer)):
            self._pace = id(optimizer)
            self.count += 1
            self._on_step(self.count)


def recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(events: list[torch.cuda.Event]) -> list[float]:
    """Of each step after the warm-up, by an event at each end of one. Waits for the card."""
    if events:
        events[-1].synchronize()
    kept = events[WARMUP_STEPS - 1 :]
    return [begin.elapsed_time(end) / 1000 for begin, end in itertools.pairwise(kept)]


def run_script(path: str, arguments: list[str]) -> str | None:
    """Run it as the interpreter would. The answer is the last line of its error; None where it
    ended well.
    """
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [path, *arguments], [str(Path(path).resolve().parent), *sys.path]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return None if not end.code else f"SystemExit: {end.code}"
    except Exception as error:  # whatever a job does: its row says so, and the others go on
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    finally:
        sys.argv, sys.path[:] = before
    return None


def settings() -> dict[str, object]:
    """What changes kernels, memory and speed, as the script left it."""
    return {
        "tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": torch.backends.cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def on_real(script: str, arguments: list[str], limit_bytes: int | None = None) -> dict[str, object]:
    """Train on the card that is there. `context_bytes` holds what other processes have, too."""
    begun = time.perf_counter()
    torch.cuda.init()
    if limit_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.mem_get_info()[1])
    torch.empty(0, device="cuda")
    bare = _outside_allocator()
    events: list[torch.cuda.Event] = []
    steps = Steps(lambda number: events.append(recorded()))
    hook = register_optimizer_step_post_hook(steps)
    error = run_script(script, arguments)
    hook.remove()
    return {
        "error": error,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "bare_context_bytes": bare,
        "context_bytes": _outside_allocator(),
        "steps": steps.count,
        "step_s": seconds_between(events) if error is None else [],
        "settings": settings(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        "seconds": time.perf_counter() - begun,
    }


def _outside_allocator() -> int:
    """Bytes of the card in use beside PyTorch's own segments: this process's context, and other
    processes.
    """
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def on_imaginary(
    card_file: str, trace_file: str, script: str, arguments: list[str]
) -> dict[str, object]:
    """Train on the card that the file describes (`wire.Card`, and "capacity_bytes")."""
    from brimful_inside import imaginary
    from brimful_inside.wire import Card

    begun = time.perf_counter()
    described = json.loads(Path(card_file).read_text(encoding="utf-8"))
    capacity = described.pop("capacity_bytes", None)
    with gzip.open(trace_file, "wt", compresslevel=1, encoding="utf-8") as trace:
        gpu = imaginary.enter(Card(**described), capacity, trace)
        steps = Steps(gpu.step)
        hook = register_optimizer_step_post_hook(steps)
        error = run_script(script, arguments)
        hook.remove()
        report = {
            "error": error,
            "allocated_bytes": gpu.allocator.peak_allocated,
            "reserved_bytes": gpu.allocator.peak_reserved,
            "steps": steps.count,
            "settings": settings(),
            "approximations": dict(gpu.approximations),
            "seconds": time.perf_counter() - begun,
        }
        gpu.leave()
    return report


def main(argv: list[str]) -> None:
    where, result, script, *arguments = argv
    kind, _, limit = where.partition(":")
    report = (
        on_real(script, arguments, int(limit) if limit else None)
        if kind == "real"
        else on_imaginary(where, result + ".trace.gz", script, arguments)
    )
    Path(result).write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
