"""Out of memory, or of another resource: one table, by which an exception or the end of a standard
error is recognised. Not among them: limits of a kernel launch ("invalid configuration argument",
Triton's "out of resource: shared memory"), illegal memory access, CUDNN_STATUS_NOT_SUPPORTED, and
Python's own errors that merely mention memory."""

from __future__ import annotations

import re
import resource
from typing import List, NamedTuple, Optional, Tuple

DEVICE = "out_of_device_memory"
HOST = "out_of_host_memory"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}  # of PyTorch's own words
# Of these no smaller batch needs less. /dev/shm: loader workers hand over their batches through it.
SHARED = "full_shared_memory"
DISK, DESCRIPTORS, PROCESSES = "full_disk", "no_file_descriptors", "no_processes"
ADDRESSES = "full_address_space"  # by a limit alone: its words are those of HOST


class OomPattern(NamedTuple):
    """One way in which a missing resource shows itself."""

    name: str
    kind: str  # DEVICE, HOST, SHARED, DISK, DESCRIPTORS or PROCESSES
    pattern: str  # a regular expression over the message, case-sensitive
    # over the exception's qualified name; empty: any that is not plainly Python's own
    type_pattern: str = ""


# The order matters: the first that fits is the answer. Shared memory comes first, since others
# quote its words, and host rows that share words with device rows before those.
OOM_PATTERNS: Tuple[OomPattern, ...] = tuple(
    OomPattern(*row)
    for row in (
        (
            "a worker's bus error",
            SHARED,
            r"(killed by signal: Bus error|Unexpected bus error encountered in worker)",
        ),
        (
            "/dev/shm is full",
            SHARED,
            r"unable to (allocate shared|write to file|resize|mmap).*No space left"
            r"|unable to write to file </torch_"
            r"|No space left on device.*'/?(dev/shm/|torch_|psm_|pym-|sem\.)",
        ),
        (
            "EMFILE",
            DESCRIPTORS,
            r"\[Errno 2[34]\]|Too many open files|received \d+ items of ancdata",
            r"(OSError|RuntimeError)$",
        ),
        (
            "no thread",
            PROCESSES,
            r"can't start new thread|libgomp: Thread creation failed"
            r"|what\(\):\s+Resource temporarily unavailable",
        ),
        ("EAGAIN", PROCESSES, r"\[Errno 11\] Resource temp", r"(BlockingIOError|OSError)$"),
        ("brimful's DiskFull", DISK, r"", r"^brimful\.errors\.DiskFull$"),
        (
            "ENOSPC",
            DISK,
            r"\[Errno 28\]|\[Errno 122\]|No space left on device|Disk quota exceeded"
            r"|PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+",
            r"(OSError|RuntimeError)$",
        ),
        # Host memory. The first two are c10/core/impl/alloc_cpu.cpp on Linux and on Windows.
        (
            "DefaultCPUAllocator",
            HOST,
            r"DefaultCPUAllocator: (can't allocate memory|not enough memory)",
        ),
        ("Python's MemoryError", HOST, r"", r"(^|[._])(MemoryError|_?ArrayMemoryError)$"),
        (
            "brimful's BatchMemoryError",
            HOST,
            r"",
            r"(^|\.)BatchMemoryError$",
        ),  # brimful_train: a batch was being made
        ("std::bad_alloc", HOST, r"std::bad_alloc"),
        (
            "ENOMEM",
            HOST,
            r"\[Errno 12\]|Cannot allocate memory( \(12\))?$",
            r"(OSError|RuntimeError|BlockingIOError)$|^$",
        ),
        ("cuDNN, host", HOST, r"CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        ("XPU, host", HOST, r"(UR_RESULT|PI|ZE_RESULT)_ERROR_OUT_OF_HOST_MEMORY"),
        # Device memory. The first is what the allocators raise: c10/cuda, c10/xpu, c10/hip,
        # aten/src/ATen/mps.
        (
            "torch.OutOfMemoryError",
            DEVICE,
            r"",
            r"^torch\.(cuda\.|_C\.)*_?OutOfMemoryError$|^OutOfMemoryError$",
        ),
        ("CUDA out of memory", DEVICE, r"CUDA out of memory"),
        ("HIP out of memory", DEVICE, r"HIP out of memory"),
        ("XPU out of memory", DEVICE, r"XPU out of memory"),
        ("MPS out of memory", DEVICE, r"MPS backend out of memory"),
        (
            "NCCL",
            DEVICE,
            r"NCCL[^\n]*(\n[^\n]*){0,8}?(Cuda failure (\d+ )?'out of memory'|Failed to CUDA "
            r"(calloc|malloc))",
        ),
        (
            "CUDA error",
            DEVICE,
            r"CUDA (driver )?error: out of "
            r"memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY",
        ),
        (
            "HIP error",
            DEVICE,
            r"HIP (driver )?error: out of memory|hipErrorOutOfMemory|hipErrorMemoryAllocation",
        ),
        (
            "XPU error",
            DEVICE,
            r"(UR_RESULT|PI|ZE_RESULT)_ERROR_(OUT_OF_DEVICE_MEMORY|MEM_OBJECT_ALLOCATION_FAILURE)",
        ),
        ("cuBLAS", DEVICE, r"CUBLAS_STATUS_ALLOC_FAILED"),
        (
            "cuSOLVER, cuSPARSE, cuRAND, cuFFT",
            DEVICE,
            r"(CUSOLVER|CUSPARSE|CURAND|CUFFT)_(STATUS_)?(ALLOC|ALLOCATION)_FAILED",
        ),
        (
            "ROCm libraries",
            DEVICE,
            r"(HIPBLAS|HIPSOLVER|HIPSPARSE)_STATUS_ALLOC_FAILED|miopenStatusAllocFailed",
        ),
        # cuDNN says so, or finds no algorithm whose workspace still fits.
        (
            "cuDNN",
            DEVICE,
            r"CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR(_DEVICE_ALLOCATION_FAILED)?)\b",
        ),
        ("cuDNN, no engine", DEVICE, r"unable to find an engine to execute this computation"),
    )
)

# Errors of Python and of scripts: what they say about memory is their own talk.
PYTHONS_OWN = re.compile(
    r"^(builtins\.)?(Arithmetic|Assertion|Attribute|FileExists|FileNotFound|Import|Index|Key|Lookup|ModuleNotFound|Name|"
    r"NotImplemented|Overflow|Permission|Recursion|Reference|Syntax|Indentation|Type|UnboundLocal|Unicode\w*|Value|"
    r"ZeroDivision)Error$|Warning$"
)

# An exception's line in a traceback, with the prefix that torchrun gives to a rank's lines.
EXCEPTION_LINE = re.compile(
    r"^(?:\[[^\]\n]*\]:? ?)*([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))(?::[ \t]*(.*))?$"
)

# What one rank says when another one fell, and what a launcher says of its child: consequences, not
# causes.
CONSEQUENCE = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessRaisedException|ProcessExitedException|SignalException|SystemExit|BrokenPipeError"
    r"|Connection (closed|reset|refused) by peer|Connection reset|[Cc]ommunicator was "
    r"aborted|exited unexpectedly"
    r"|Watchdog caught collective operation timeout|Broken pipe"
)


def qualified_name(cls: type) -> str:
    """As the table has it: "torch.OutOfMemoryError", "MemoryError"."""
    inside = "" if cls.__module__ == "builtins" else cls.__module__ + "."
    return inside + cls.__qualname__


def match_oom(type_name: str, message: str) -> Optional[OomPattern]:
    """`match_exhausted`, of memory alone, which smaller batches need less of."""
    pattern = match_exhausted(type_name, message)
    return pattern if pattern is not None and pattern.kind in (DEVICE, HOST) else None


def kind_of(pattern: OomPattern) -> str:
    """What is missing in this process, or in one with its limits: memory that it must not address
    is not asked for of the host."""
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return ADDRESSES if pattern.kind == HOST and limited else pattern.kind


def match_exhausted(type_name: str, message: str) -> Optional[OomPattern]:
    """The pattern of an exception, by its qualified name and message; None if it is not about a
    missing resource. Without a name, `message` is a process's last words (the end of its standard
    error): the exceptions in it are looked at from the last one back, those that only follow from
    another's fall passed over."""
    if not type_name:
        return _match_in(message)
    if PYTHONS_OWN.search(type_name):
        return None
    name = type_name[len("builtins.") :] if type_name.startswith("builtins.") else type_name
    for pattern in OOM_PATTERNS:
        if re.search(pattern.type_pattern, name) and re.search(
            pattern.pattern, message, re.MULTILINE
        ):
            return pattern
    return None


def _match_in(text: str) -> Optional[OomPattern]:
    exceptions = _exceptions_in(text)
    for name, message in reversed(exceptions):
        pattern = match_exhausted(name, message)
        if pattern is not None:
            return pattern
        if not CONSEQUENCE.search(name) and not CONSEQUENCE.search(message):
            return None  # the script raised another error, whatever it printed before
    # No exception, or only consequences: a crash in C++, or a worker that wrote before it died.
    for pattern in OOM_PATTERNS:
        if pattern.pattern and not pattern.type_pattern and re.search(pattern.pattern, text):
            return pattern
    return None


def _exceptions_in(text: str) -> List[Tuple[str, str]]:
    """Qualified names and messages of the exceptions in a traceback's text; a message runs on over
    the lines that follow."""
    exceptions: List[Tuple[str, str]] = []
    for line in text.splitlines():
        match = EXCEPTION_LINE.match(line)
        if match:
            exceptions.append((match.group(1), match.group(2) or ""))
        elif exceptions and line.strip() and not line.startswith(("Traceback", "  File")):
            exceptions[-1] = (exceptions[-1][0], exceptions[-1][1] + "\n" + line)
    return exceptions


def unallocated_bytes(message: str) -> int:
    """What PyTorch held of the card without a tensor in it, where that is as much as it was asked
    for, in the words of its error: memory in pieces that are too small. Else 0."""
    wanted = _amount(r"Tried to allocate {}", message)
    cached = _amount(_CACHED, message) or 0
    return cached if wanted and cached >= wanted else 0


def room_bytes(message: str) -> Optional[int]:
    """How much PyTorch could have held in tensors when it raised `message`: what it had allocated,
    what it kept beside that, and what was free or still allowed. None where that is not said."""
    amounts = [_amount(words, message) for words in ("{} is allocated by PyTorch", _CACHED)]
    free = _amount("of which {} is free", message)
    if None in amounts or free is None:
        return None
    allowed = _amount("{} allowed", message)
    room = sum(amount or 0 for amount in amounts) + free
    return room if allowed is None else min(room, allowed)


_CACHED = "{} is reserved by PyTorch but unallocated"


def _amount(words: str, message: str) -> Optional[int]:
    """The bytes that `words` name in place of their braces."""
    amount = re.search(words.format(r"([\d.]+) (\w+)"), message)
    return None if amount is None else int(float(amount[1]) * _UNITS.get(amount[2], 0))
