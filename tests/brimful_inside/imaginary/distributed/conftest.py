"""One rank of eight, started alone, on one imaginary card or on three; gone at the test's end."""

from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from brimful_inside import imaginary  # noqa: E402
from brimful_inside.wire import ALONE_VARIABLE  # noqa: E402
from tests.brimful_inside.imaginary.conftest import card, entered  # noqa: E402

RANKS, RANK = 8, 3


@pytest.fixture(autouse=True)
def no_workspaces(monkeypatch):
    """cuBLAS's workspaces would stand in every sum."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")


@pytest.fixture
def alone(monkeypatch, trace_file) -> Iterator[imaginary.ImaginaryGpu]:
    """Rank 3 of 8 with a group that was made as scripts make it."""
    variables = {
        "RANK": RANK,
        "WORLD_SIZE": RANKS,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "MASTER_PORT": 29500,
    }
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", ALONE_VARIABLE: 1}.items():
        monkeypatch.setenv(name, str(value))
    with entered(card(), None, trace_file) as gpu:
        dist.init_process_group("nccl")
        yield gpu
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.fixture
def requested() -> Callable[[], int]:
    """Bytes in use, as they were requested."""
    return lambda: torch.cuda.memory_stats()["requested_bytes.all.current"]
