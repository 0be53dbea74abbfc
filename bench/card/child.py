"""One training script in a process of its own, on the card that is here or an imaginary one, and
what it took.

    python -m bench.card.child <spec.json> <script> [its arguments]

The spec: `result` (the file to write), `card` (an imaginary one: the fields of `wire.Card`; None:
the real one), `limit_bytes` (the most that PyTorch may hold), `lock` (a file: the card is used by
one of its holders at a time, while others import), `history` (keep what became of segments). The
result is JSON: peaks in bytes, seconds of each step after the warm-up (between ends of steps, by
CUDA events), and the settings in force; of an imaginary card the trace lies beside it. Exit code 1
where the script failed.
"""

import contextlib
import fcntl
import gzip
import itertools
import json
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.traced import imagined
from brimful_inside.wire import Card

WARMUP_STEPS = 3


def seconds_between(events: list[torch.cuda.Event]) -> list[float]:
    """Of each step after the warm-up, by an event at each end of one. Waits for the card."""
    if events:
        events[-1].synchronize()
    pairs = itertools.pairwise(events[WARMUP_STEPS - 1 :])
    return [begin.elapsed_time(end) / 1000 for begin, end in pairs]


def error_of(script: str, arguments: list[str]) -> str | None:
    """Run it as the interpreter would. The last line of its error; None where it ended well."""
    before = sys.argv, list(sys.path)
    sys.argv, sys.path[:] = [script, *arguments], [str(Path(script).resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
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


def trained(
    script: str,
    arguments: list[str],
    limit_bytes: int | None = None,
    history: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, object]:
    """Train on the card that torch sees. `context_bytes` holds what other processes have, too."""
    begun = time.perf_counter()
    torch.cuda.init()
    if limit_bytes is not None:
        torch.cuda.set_per_process_memory_fraction(limit_bytes / torch.cuda.mem_get_info()[1])
    if history:
        torch.cuda.memory._record_memory_history(context=None)
    torch.empty(0, device="cuda")
    bare = outside_allocator()
    events: list[torch.cuda.Event] = []
    pace: list[int] = []  # the first optimizer that steps sets it; its id, for it may end

    def step_ends(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        pace.append(id(optimizer))
        if pace[0] == id(optimizer):
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
            if on_step is not None:
                on_step(len(events))

    hook = register_optimizer_step_post_hook(step_ends)
    error = error_of(script, arguments)
    hook.remove()
    return {
        "error": error,
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "bare_context_bytes": bare,
        "context_bytes": outside_allocator(),
        "steps": len(events),
        "step_s": seconds_between(events) if error is None else [],
        "settings": settings(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        "seconds": time.perf_counter() - begun,
        **({"segments": packed(torch.cuda.memory._snapshot())} if history else {}),
    }


def outside_allocator() -> int:
    """Bytes of the card in use beside PyTorch's own segments: this process's context, and other
    processes.
    """
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def packed(snapshot: dict[str, Any]) -> dict[str, Any]:
    """The segments of an allocation history: of each that was taken or given back [how many
    allocations there had been, its KiB (negative: given back), KiB above the lowest address].
    """
    rows, allocations = [], 0
    for entry in next(iter(snapshot["device_traces"]), ()):
        allocations += entry["action"] == "alloc"
        if (sign := {"segment_alloc": 1, "segment_free": -1}.get(entry["action"])) is not None:
            rows.append([allocations, sign * (entry["size"] >> 10), entry["addr"] >> 10])
    lowest = min((address for _, _, address in rows), default=0)
    moved = [[number, size, address - lowest] for number, size, address in rows]
    return {"allocations": allocations, "lowest_kib": lowest, "rows": moved}


def main(argv: list[str]) -> int:
    spec_file, script, *arguments = argv
    spec = json.loads(Path(spec_file).read_text(encoding="utf-8"))
    limits = spec.get("limit_bytes"), spec.get("history", False)
    with contextlib.ExitStack() as stack:
        if spec.get("lock"):
            fcntl.flock(stack.enter_context(open(spec["lock"], "a")), fcntl.LOCK_EX)
        if spec.get("card") is None:
            report = trained(script, arguments, *limits)
        else:
            capacity = spec["card"].pop("capacity_bytes")
            trace = stack.enter_context(gzip.open(spec["result"] + ".trace.gz", "wt", 1))
            gpu = stack.enter_context(imagined(Card(**spec["card"]), trace, capacity))
            report = trained(script, arguments, *limits, on_step=gpu.cards.step)
            report["approximations"] = dict(gpu.approximations)
    Path(spec["result"]).write_text(json.dumps(report), encoding="utf-8")
    return 1 if report["error"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
