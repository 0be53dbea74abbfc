"""What torch.cuda and torch.accelerator answer before a card is first used: a table of calls, each
made in a process of its own that has used no card.

    python -m bench.card.first_use    # on a CUDA card: one line of JSON a call

PyTorch initializes CUDA at the first use. Before it some functions answer 0, some raise, and some
initialize CUDA by themselves; which ones do follows from torch/cuda/__init__.py,
torch/cuda/memory.py, torch/cuda/random.py and torch/accelerator/, as of PyTorch 2.13. `PYTHON` rows
follow from these files alone. `BINDINGS` rows rest on what PyTorch's C++ bindings do besides, which
a run on a card confirms. Importing this module imports no torch."""

import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PYTHON, BINDINGS = "PyTorch's Python", "PyTorch's C++ bindings"
NOT_THERE = "not in this release"
_ROW_LIMIT_S = 120


@dataclass(frozen=True)
class Row:
    """One call. `answer`: the value as text, the name of its type where the value depends on the
    machine, or the error and how its message begins. `initializes`: None where nothing is said."""

    call: str  # a Python expression over torch
    answer: str
    initializes: bool | None
    evidence: str = PYTHON

    @property
    def expected(self) -> str:
        return _result(self.answer, self.initializes)


def _result(answer: str, initializes: bool | None) -> str:
    said = {True: "; CUDA is initialized", False: "; CUDA is not initialized", None: ""}
    return answer + said[initializes]


# Each line: the answer, and the calls that give it.
_INITIALIZE = {
    "None": """init() ipc_collect() synchronize() synchronize(0) set_sync_debug_mode(0)
        reset_peak_memory_stats() reset_peak_memory_stats('cuda') reset_accumulated_memory_stats()
        reset_max_memory_allocated() reset_max_memory_cached() Event().record()
        set_per_process_memory_fraction(0.5) set_per_process_memory_fraction(0.5,0)""",
    "0": """current_device() get_sync_debug_mode()""",
    "bool": """is_bf16_supported() is_tf32_supported() can_device_access_peer(0,0)""",
    "int": """initial_seed() current_blas_handle() current_solver_handle()
        caching_allocator_alloc(512) utilization() temperature() power_draw() clock_rate()
        memory_usage() device_memory_used()""",
    "float": """get_per_process_memory_fraction() get_per_process_memory_fraction(0)""",
    "str": "get_device_name() get_device_name(0) memory_summary() list_gpu_processes()",
    "tuple": """get_device_capability() get_device_capability(0) mem_get_info() mem_get_info(0)
        cudart().cudaMemGetInfo(0)""",
    "list": "get_rng_state_all()",
    "Tensor": "get_rng_state() get_rng_state(0)",
    "_CudaDeviceProperties": "get_device_properties() get_device_properties(0)",
    "Stream": """current_stream() current_stream(0) default_stream() get_stream_from_external(0)
        ExternalStream(0)""",
    "device": "device(None)",
    "StreamContext": "stream(None)",
}
_ANSWER = {
    "None": """manual_seed(0) manual_seed_all(0) seed() seed_all() empty_cache() set_stream(None)
        set_rng_state(torch.zeros(16,dtype=torch.uint8)) set_device(-1) device(-1).__enter__()
        device_of(torch.zeros(1)).__enter__() caching_allocator_enable(False)
        Event().synchronize()""",
    "0": """memory_allocated() memory_allocated(0) max_memory_allocated() max_memory_allocated(0)
        memory_reserved() memory_reserved(0) max_memory_reserved() max_memory_reserved(0)
        memory_cached() max_memory_cached() nvtx.range_push('a')""",
    "{}": "memory_stats_as_nested_dict() host_memory_stats_as_nested_dict()",
    "OrderedDict": "memory_stats() memory_stats(0) host_memory_stats()",
    "True": "is_available() Event().query()",
    "False": "is_initialized()",
    "int": """device_count() utilization(0) temperature(0) power_draw(0) clock_rate(0)
        memory_usage(0) device_memory_used(0)""",
    "str": "get_gencode_flags() list_gpu_processes(0)",
    "list": "get_arch_list()",
    "device": "device(0)",
    "Event": "Event()",
}
_ACCELERATOR_INITIALIZES = {
    "None": "synchronize()",
    "0": "current_device_index() current_device_idx()",
    "tuple": "get_memory_info()",
}
_ACCELERATOR_ANSWERS = {
    "None": """reset_peak_memory_stats() reset_peak_memory_stats(0) empty_cache()
        reset_accumulated_memory_stats() reset_accumulated_memory_stats(0)
        device_index(None).__enter__()""",
    "0": """memory_allocated() memory_allocated(0) max_memory_allocated() max_memory_allocated(0)
        memory_reserved() memory_reserved(0) max_memory_reserved() max_memory_reserved(0)""",
    "OrderedDict": "memory_stats() memory_stats(0)",
    "True": "is_available()",
    "int": "device_count()",
    "device": "current_accelerator() current_accelerator(True)",
}
_BY_BINDINGS: tuple[tuple[str, str, bool | None], ...] = (
    ("cuda.set_device(0)", "None", True),
    ("cuda.device(0).__enter__()", "None", True),
    ("cuda.set_stream(torch.cuda.current_stream())", "None", True),
    ("cuda.MemPool()", "MemPool", True),
    ("cuda.Stream(0)", "Stream", True),
    ("cuda.Stream()", "Stream", False),
    ("cuda.CUDAGraph()", "CUDAGraph", False),
    ("cuda.graph_pool_handle()", "tuple", False),
    ("cuda.is_current_stream_capturing()", "False", False),
    ("cuda.get_allocator_backend()", "'native'", False),
    ("cuda.caching_allocator_delete(0)", "None", False),
    ("cuda.caching_allocator_disabled().__enter__()", "None", False),
    ("cuda.memory_snapshot()", "[]", False),
    ("cuda.memory._snapshot()", "dict", False),
    ("cuda.memory._set_allocator_settings('max_split_size_mb:64')", "None", False),
    ("cuda.reset_peak_host_memory_stats()", "None", False),
    ("cuda.reset_accumulated_host_memory_stats()", "None", False),
    # recording memory makes the allocator of each card, which torch.cuda does not notice
    ("cuda.memory._record_memory_history()", "None", False),
    ("cuda.memory._record_memory_history() or torch.cuda.reset_peak_memory_stats(0)", "None", None),
    ("accelerator.set_device_index(0)", "None", True),
    ("accelerator.set_device_idx(0)", "None", True),
    ("accelerator.device_index(0).__enter__()", "None", True),
    ("accelerator.current_stream()", "Stream", True),
    ("accelerator.current_stream(0)", "Stream", True),
    ("accelerator.set_stream(torch.accelerator.current_stream())", "None", True),
    ("accelerator.get_memory_info(0)", "tuple", True),
    ("accelerator.get_device_capability()", "dict", True),
    ("accelerator.synchronize(0)", "None", False),
    ("accelerator.empty_host_cache()", "None", False),
    *(
        (f"cuda.{function}(0)", "RuntimeError: Invalid device argument", False)
        for function in (
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
        )
    ),
)
_FORK = "RuntimeError: Cannot re-initialize CUDA in forked subprocess"
# whether a process that is forked after the first call may use a card
_FORKED = (
    ("[torch.cuda.is_available(), forked(torch.cuda.init)]", f"[True, '{_FORK}']", PYTHON),
    ("[torch.cuda.device_count() > 0, forked(torch.cuda.init)]", "[True, 'None']", PYTHON),
    ("[torch.cuda.manual_seed(0), forked(torch.cuda.init)]", "[None, 'None']", PYTHON),
    ("[torch.cuda.Event().query(), forked(torch.cuda.init)]", "[True, 'None']", BINDINGS),
)
_RAISE = (
    ("cuda.memory_summary(0)", "KeyError: 'allocated_bytes"),
    (
        "cuda.Event().elapsed_time(torch.cuda.Event())",
        "ValueError: Both events must be created with argument 'enable_timing=True'",
    ),
    (
        "cuda.Event(enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True))",
        "ValueError: Both events must be recorded before calculating elapsed time",
    ),
)


def rows() -> list[Row]:
    """The table: each function once with the current device, and with card 0 where it takes one."""
    by_answers = (
        ("cuda", _INITIALIZE, True),
        ("cuda", _ANSWER, False),
        ("accelerator", _ACCELERATOR_INITIALIZES, True),
        ("accelerator", _ACCELERATOR_ANSWERS, False),
    )
    return [
        *(
            Row(f"torch.{module}.{call}", answer, initializes)
            for module, table, initializes in by_answers
            for answer, calls in table.items()
            for call in calls.split()
        ),
        Row("torch.manual_seed(0)", "Generator", False),
        *(Row(f"torch.{call}", answer, False) for call, answer in _RAISE),
        *(
            Row(f"torch.{call}", answer, initializes, BINDINGS)
            for call, answer, initializes in _BY_BINDINGS
        ),
        *(Row(call, answer, False, evidence) for call, answer, evidence in _FORKED),
    ]


def check(row: Row) -> dict[str, str]:
    """`row` in a child process: {"call", "expected", "result", "evidence"}. Torch is imported once,
    here, since importing it initializes nothing. Raises RuntimeError where this process has used a
    card."""
    import torch

    if torch.cuda.is_initialized():
        raise RuntimeError("this process has used a card: check from one that has not")
    result = _forked(lambda: _seen(row))
    return {"call": row.call, "expected": row.expected, "result": result, "evidence": row.evidence}


def _forked(function: Callable[[], Any]) -> str:
    """What `function` returns, or its error, in a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(_ROW_LIMIT_S)  # a call that hangs ends its process
            os.write(writing, str(_outcome(function)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text or f"the process ended with status {status}"


def _outcome(function: Callable[[], Any]) -> Any:
    """What `function` returns; of an error its type and the words before numbers and stops."""
    try:
        return function()
    except Exception as error:
        return f"{type(error).__name__}: {re.split(r'[.:0-9]', str(error))[0].strip()}"


def _seen(row: Row) -> str:
    """What the call does in this process."""
    import torch

    warnings.simplefilter("ignore")  # of functions that have new names
    if not _is_there(torch, row.call):
        return NOT_THERE
    names = {"torch": torch, "forked": _forked}
    answer = _outcome(lambda: _as_text(eval(row.call, names), row.answer))  # of the table above
    return _result(answer, None if row.initializes is None else torch.cuda.is_initialized())


def _is_there(torch: Any, call: str) -> bool:
    """Whether this release has all functions that `call` names."""
    for name in re.findall(r"torch((?:\.\w+)+)", call):
        owner = torch
        for part in name.split(".")[1:]:
            owner = getattr(owner, part, None)
            if owner is None:
                return False
    return True


def _as_text(value: Any, wanted: str) -> str:
    """The value, or its type where `wanted` is the name of a type."""
    kind = type(value).__name__.lstrip("_")
    return wanted if kind == wanted.lstrip("_") else repr(value)


def main() -> int:
    differ = 0
    for row in rows():
        line = check(row)
        differ += line["result"] not in (line["expected"], NOT_THERE)
        print(json.dumps(line), flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
