"""One test a row of the table, and what must not be taken for out-of-memory."""

import pytest

from brimful_inside.simulator.oom_patterns import (
    DESCRIPTORS,
    DEVICE,
    DISK,
    HOST,
    OOM_PATTERNS,
    PROCESSES,
    SHARED,
    match_exhausted,
    match_oom,
    room_bytes,
    unallocated_bytes,
)

SEEN = [
    (
        "RuntimeError",
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to "
        "allocate 4294967296 bytes. Error code 12 (Cannot allocate memory)",
        "DefaultCPUAllocator",
        HOST,
    ),
    (
        "RuntimeError",
        "[enforce fail at alloc_cpu.cpp:72] data. DefaultCPUAllocator: not enough memory: you "
        "tried to get 9.",
        "DefaultCPUAllocator",
        HOST,
    ),
    ("builtins.MemoryError", "", "Python's MemoryError", HOST),
    (
        "numpy._core._exceptions._ArrayMemoryError",
        "Unable to allocate 1.00 TiB for an array with shape (137438953472,)",
        "Python's MemoryError",
        HOST,
    ),
    (
        "brimful_train.data.batch_errors.BatchMemoryError",
        "Memory ran out while a batch was being made on the host: MemoryError",
        "brimful's BatchMemoryError",
        HOST,
    ),
    ("RuntimeError", "std::bad_alloc", "std::bad_alloc", HOST),
    (
        "RuntimeError",
        "unable to mmap 128 bytes from file </torch_1_2_3>: Cannot allocate memory (12)",
        "ENOMEM",
        HOST,
    ),
    (
        "RuntimeError",
        "unable to write to file </torch_12_3>: No space left on device (28)",
        "/dev/shm is full",
        SHARED,
    ),
    (
        "OSError",
        "[Errno 28] No space left on device: '/dev/shm/blocks'",
        "/dev/shm is full",
        SHARED,
    ),
    (
        "brimful_train.data.batch_errors.BatchMemoryError",
        "Memory ran out while a batch was being made on the host: DataLoader worker (pid 7) is "
        "killed by signal: Bus error",
        "a worker's bus error",
        SHARED,
    ),
    ("OSError", "[Errno 12] Cannot allocate memory", "ENOMEM", HOST),
    (
        "RuntimeError",
        "DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that "
        "dataloader's workers "
        "are out of shared memory. Please try to raise your shared memory limit.",
        "a worker's bus error",
        SHARED,
    ),
    (
        "RuntimeError",
        "unable to allocate shared memory(shm) for file </torch_12_3>: No space left on device "
        "(28)",
        "/dev/shm is full",
        SHARED,
    ),
    ("OSError", "[Errno 28] No space left on device: '/tmp/x'", "ENOSPC", DISK),
    ("OSError", "[Errno 122] Disk quota exceeded", "ENOSPC", DISK),
    (
        "RuntimeError",
        "[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0",
        "ENOSPC",
        DISK,
    ),
    (
        "brimful.errors.DiskFull",
        "The disk is full: x could not be written.",
        *(
            "brimful's DiskFull",
            DISK,
        ),
    ),
    ("OSError", "[Errno 24] Too many open files: 'x'", "EMFILE", DESCRIPTORS),
    (
        "RuntimeError",
        "unable to open shared memory object </torch_1_2> in read-write mode: Too many open files "
        "(24)",
        "EMFILE",
        DESCRIPTORS,
    ),
    ("RuntimeError", "received 0 items of ancdata", "EMFILE", DESCRIPTORS),
    ("RuntimeError", "can't start new thread", "no thread", PROCESSES),
    ("BlockingIOError", "[Errno 11] Resource temporarily unavailable", "EAGAIN", PROCESSES),
    (
        "RuntimeError",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "cuDNN, host",
        HOST,
    ),
    (
        "RuntimeError",
        "Native API failed. Native API returns: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
        "XPU, host",
        HOST,
    ),
    (
        "torch.OutOfMemoryError",
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 39.38 GiB",
        "torch.OutOfMemoryError",
        DEVICE,
    ),
    ("torch.cuda.OutOfMemoryError", "CUDA out of memory.", "torch.OutOfMemoryError", DEVICE),
    (
        "RuntimeError",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA out of memory",
        DEVICE,
    ),
    ("RuntimeError", "HIP out of memory. Tried to allocate 2.00 MiB.", "HIP out of memory", DEVICE),
    (
        "RuntimeError",
        "XPU out of memory, please use `empty_cache` to release",
        "XPU out of memory",
        DEVICE,
    ),
    (
        "RuntimeError",
        "MPS backend out of memory (MPS allocated: 17.12 GB, other allocations: 1.00 GB, max "
        "allowed: 18.13 GB).",
        "MPS out of memory",
        DEVICE,
    ),
    (
        "torch.distributed.DistBackendError",
        "NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled cuda error\n"
        "Last error:\nFailed to CUDA calloc 6291456 bytes",
        "NCCL",
        DEVICE,
    ),
    (
        "torch.AcceleratorError",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error",
        DEVICE,
    ),
    ("RuntimeError", "CUDA driver error: out of memory", "CUDA error", DEVICE),
    ("RuntimeError", "HIP error: out of memory", "HIP error", DEVICE),
    (
        "RuntimeError",
        "Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "XPU error",
        DEVICE,
    ),
    (
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuBLAS",
        DEVICE,
    ),
    (
        "torch._C._LinAlgError",
        "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
        "cuSOLVER, cuSPARSE, cuRAND, cuFFT",
        DEVICE,
    ),
    (
        "RuntimeError",
        "CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`",
        "ROCm libraries",
        DEVICE,
    ),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "cuDNN", DEVICE),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "cuDNN", DEVICE),
    (
        "RuntimeError",
        "GET was unable to find an engine to execute this computation",
        "cuDNN, no engine",
        DEVICE,
    ),
]

NOT_MEMORY = [
    ("RuntimeError", "CUDA error: invalid configuration argument"),
    ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered"),
    (
        "RuntimeError",
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input.",
    ),
    (
        "triton.runtime.errors.OutOfResources",
        "out of resource: shared memory, Required: 147456, Hardware limit: 101376.",
    ),
    (
        "RuntimeError",
        "view size is not compatible with input tensor's size and stride (at least one dimension "
        "spans memory)",
    ),
    ("KeyError", "'CUDA out of memory'"),
    ("ValueError", "not enough memory slots: CUDA out of memory"),
    ("builtins.AssertionError", "expected CUDA out of memory"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/dev/shm/x'"),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
    ("my.module.NotMemoryErrorAtAll", "whatever"),
    ("UserWarning", "CUDA out of memory soon"),
]


@pytest.mark.parametrize(("type_name", "message", "name", "kind"), SEEN)
def test_what_has_run_out_is_recognised(type_name, message, name, kind):
    pattern = match_exhausted(type_name, message)
    assert pattern is not None
    assert (pattern.name, pattern.kind) == (name, kind)
    assert match_oom(type_name, message) == (pattern if kind in (DEVICE, HOST) else None)


def test_every_row_of_the_table_has_a_case():
    assert {pattern.name for pattern in OOM_PATTERNS} == {name for _, _, name, _ in SEEN}


@pytest.mark.parametrize(("type_name", "message"), NOT_MEMORY)
def test_this_is_not_out_of_memory(type_name, message):
    assert match_exhausted(type_name, message) is None


LAST_WORDS = [
    (
        'Traceback (most recent call last):\n  File "train.py", line 3\ntorch.OutOfMemoryError: '
        "CUDA out of memory.",
        DEVICE,
    ),
    (
        "Traceback (most recent call last):\n  File 'x.py', line 1\n    x = [0] * "
        "10**12\nMemoryError\n",
        HOST,
    ),
    # a rank that only lost its peer does not hide the cause
    (
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
        "[rank1]: RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer "
        "[127.0.0.1]:4000\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py "
        "FAILED\n",
        DEVICE,
    ),
    # an error after one that the script caught is the cause
    (
        "torch.OutOfMemoryError: CUDA out of memory. (caught, going on)\nTraceback:\nKeyError: "
        "'loss'\n",
        None,
    ),
    # native code
    (
        "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: out "
        "of memory\n",
        DEVICE,
    ),
    (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).\n",
        SHARED,
    ),
    (
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource "
        "temporarily unavailable\n",
        PROCESSES,
    ),
    ("epoch 1 loss 2.3\nusing 3 GiB of memory\n", None),
    ("", None),
]


@pytest.mark.parametrize(("words", "kind"), LAST_WORDS)
def test_the_end_of_standard_error_is_searched(words, kind):
    pattern = match_exhausted("", words)
    assert (pattern.kind if pattern is not None else None) == kind


@pytest.mark.parametrize(
    ("asked", "unallocated", "wanted"),
    [
        ("20.00 MiB", "1.69 GiB", int(1.69 * (1 << 30))),
        ("1.00 GiB", "512.00 MiB", 0),
        ("20.00 MiB", "20.00 MiB", 20 << 20),
        ("512 bytes", "2.00 KiB", 2048),
    ],
)
def test_memory_is_in_pieces_where_as_much_as_was_asked_for_is_unallocated(
    asked, unallocated, wanted
):
    message = f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 8.00 "
    message += f"GiB, and {unallocated} is reserved by PyTorch but unallocated. If reserved"
    assert unallocated_bytes(message) == wanted


def test_an_error_of_another_library_says_nothing_of_pieces_or_room():
    assert unallocated_bytes("CUBLAS_STATUS_ALLOC_FAILED") == 0
    assert room_bytes("CUBLAS_STATUS_ALLOC_FAILED") is None


@pytest.mark.parametrize(("limit", "wanted"), [("", 5.75), ("4.00 GiB allowed; ", 4)])
def test_the_room_is_what_is_held_and_what_is_free_or_allowed(limit, wanted):
    message = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB "
        f"of which 1.25 GiB is free. {limit}Of the allocated memory 4.00 GiB is allocated by "
        "PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
    )
    assert room_bytes(message) == wanted * (1 << 30)
