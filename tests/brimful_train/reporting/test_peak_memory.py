"""Peaks belong to their phase; a budget on the host is one that a training recovers from."""

import json
import resource
from unittest import mock

import pytest
import torch
from torch import nn

from brimful.errors import DoesNotFit
from brimful_train import Arrays, BatchingConfig, Config, Peaks, Sum, Task, fit
from brimful_train.reporting.peak_memory import Peak
from brimful_train.reporting.progress_log import Statistics
from tests.brimful_inside.imaginary.conftest import card, entered
from tests.brimful_train.ledger import network_config, network_task, started, statistics

MIB = 1 << 20


def hold(mib: int, device: str = "cpu") -> None:
    torch.ones(mib * MIB, dtype=torch.uint8, device=device)


def phases(*visits: tuple[str, int]) -> int:
    """How much more "large" held than "small", after visits that each held so many MiB."""
    peaks = Peaks("cpu")
    for name, mib in visits:
        with peaks.phase(name):
            hold(mib)
    return peaks.of["large"].host_bytes - peaks.of["small"].host_bytes


@pytest.mark.parametrize(
    "visits",
    [
        [("small", 64), ("large", 320)],
        [("large", 320), ("small", 64)],
        [("large", 320), ("large", 64), ("small", 64)],
    ],
)
def test_a_phase_has_its_own_peak_whatever_ran_before_the_largest_of_its_visits(visits):
    assert phases(*visits) > 200 * MIB


def test_a_phase_within_another_does_not_count_as_that():
    peaks = Peaks("cpu")
    with peaks.phase("train"):
        hold(64)
        with peaks.phase("eval"):
            hold(320)
        hold(64)
    assert peaks.of["eval"].host_bytes - peaks.of["train"].host_bytes > 200 * MIB


def test_cached_work_and_a_phase_never_reached_have_no_peak_and_not_zero():
    peaks = Peaks("cpu")
    with peaks.phase("encoding") as visit:
        visit.cached = True
    written = Statistics().content(
        {**peaks.of, "train": Peak(allocated_bytes=1 << 30, reserved_bytes=2 << 30)}
    )
    content = {
        "encoding_cached": True,
        "peak_host_memory_encoding_gb": None,
        "peak_gpu_memory_train_gb": 1.0,
        "peak_gpu_memory_train_reserved_gb": 2.0,
        "peak_gpu_memory_eval_gb": None,
        "peak_host_memory_train_gb": None,
    }
    assert written == {**written, **content}


def under_a_budget(folder: str, budget: str) -> None:
    """Each sample takes some 2 MiB in the forward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    x = torch.randn(256, 1, 128, 128)
    y = torch.randint(0, 4, (256,))
    entropy = nn.functional.cross_entropy

    def measure(model, batch):
        return {"loss": Sum(entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1]))}

    task = Task(
        "conv",
        model,
        lambda model, b: entropy(model(b[0]), b[1]),
        Arrays(x, y),
        Arrays(x[:16], y[:16]),
        measure,
    )
    config = Config(
        out=folder,
        batch=BatchingConfig(micro_batch=256),
        memory_budget=budget or None,
        device="cpu",
    )
    print(json.dumps(dict(fit(task, config).measures)))


@pytest.mark.heavy
def test_a_host_budget_makes_pieces_smaller_and_not_the_result(tmp_path, capfd):
    # a limit stays with its process
    arguments = str(tmp_path / "420MiB"), "420MiB"
    process = started(under_a_budget, tmp_path / "words", *arguments, alone=True)
    under_a_budget(str(tmp_path / "none"), "")
    process.join(120)
    process.kill()  # one that is still there hangs, and its exit code says so
    out, stderr = ((tmp_path / f"words.{name}").read_text() for name in ("out", "err"))
    assert process.exitcode == 0, stderr
    written = statistics(tmp_path / "420MiB")
    assert written["recoveries"] > 0 and written["micro_batch"] < written["effective_batch"] == 256
    assert "DefaultCPUAllocator" in stderr
    assert json.loads(out)["loss"] == pytest.approx(
        json.loads(capfd.readouterr().out)["loss"], rel=1e-4
    )


def test_a_budget_below_what_the_process_holds_already_is_refused_and_not_put_in_force(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(DoesNotFit, match="before the training begins"):
        fit(network_task(), network_config(tmp_path, memory_budget="1MiB"))
    assert resource.getrlimit(resource.RLIMIT_DATA) == limits


def test_a_model_whose_optimizer_has_no_room_is_a_sentence(tmp_path):
    words = (
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 9 bytes."
    )
    failing = mock.patch("brimful_train.parts.make_optimizer", side_effect=RuntimeError(words))
    with failing, pytest.raises(DoesNotFit, match="state of its optimizer do not fit"):
        fit(network_task(), network_config(tmp_path))


def test_a_phase_may_begin_before_the_card_is_first_used():
    with entered(card()):
        peaks = Peaks("cuda:0")
        with peaks.phase("encoding"):
            assert not torch.cuda.is_initialized() and peaks.read("encoding").allocated_bytes == 0
            hold(8, "cuda:0")
        with peaks.phase("train"):
            hold(2, "cuda:0")
    assert [peaks.of[name].allocated_bytes for name in ("encoding", "train")] == [8 * MIB, 2 * MIB]
