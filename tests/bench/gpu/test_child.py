"""What is reported of a script, with the imaginary card in the real one's place: it has every call
that is made.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from bench.gpu import child  # noqa: E402
from bench.gpu.jobs import JOBS, SCRIPTS, in_order  # noqa: E402
from brimful_inside import imaginary  # noqa: E402
from brimful_inside.wire import Card  # noqa: E402
from tests.brimful_inside.imaginary.conftest import entered  # noqa: E402

ROOT = Path(__file__).parents[3]
GIB = 1 << 30
CARD = {
    "name": "NVIDIA H200",
    "total_bytes": 140 * GIB,
    "capability": [9, 0],
    "multiprocessors": 132,
    "context_bytes": GIB // 2,
}
PAIRWISE = str(SCRIPTS / "pairwise.py")


@pytest.fixture
def stand_in() -> Iterator[imaginary.ImaginaryGpu]:
    with entered(Card(**CARD), 139 * GIB) as gpu:
        yield gpu


def test_a_run_on_a_card_reports_peaks_context_settings_and_a_time_for_each_step_after_the_warm_up(
    stand_in,
):
    result = child.on_real(PAIRWISE, ["--batch-size", "32", "--steps", "8"])
    assert result["error"] is None and result["steps"] == 8
    assert len(result["step_s"]) == 8 - child.WARMUP_STEPS
    allocator = stand_in.allocator
    peaks = (allocator.peak_allocated, allocator.peak_reserved)
    assert (result["allocated_bytes"], result["reserved_bytes"]) == peaks and peaks[0] < peaks[1]
    assert result["context_bytes"] == result["bare_context_bytes"] == GIB // 2
    assert result["settings"]["cudnn_benchmark"] is False


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("raise RuntimeError('no')", "RuntimeError: no"),
        ("sys.exit('no')", "SystemExit: no"),
        ("sys.exit(0)", None),
    ],
)
def test_a_script_that_fails_is_reported_with_its_own_message(stand_in, tmp_path, line, error):
    path = tmp_path / "train.py"
    path.write_text(f"import sys\nassert sys.argv[1:] == ['x']\n{line}")
    assert child.on_real(str(path), ["x"])["error"] == error


def test_a_full_card_is_an_error_with_the_peak_up_to_it(stand_in, capsys):
    result = child.on_real(PAIRWISE, ["--batch-size", "100000", "--steps", "1"])
    assert result["error"].startswith("OutOfMemoryError") and result["allocated_bytes"] > 0


def test_the_same_run_is_predicted_in_a_process_of_its_own(tmp_path, stand_in):
    words = ["--batch-size", "32", "--steps", "5"]
    on_card = child.on_real(PAIRWISE, words)
    (tmp_path / "card").write_text(json.dumps({**CARD, "capacity_bytes": 139 * GIB}))
    argv = [
        "-m",
        "bench.gpu.child",
        str(tmp_path / "card"),
        str(tmp_path / "out"),
        PAIRWISE,
        *words,
    ]
    done = subprocess.run(
        [sys.executable, *argv],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}/src"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out").read_text())
    for name in ("error", "steps", "allocated_bytes", "reserved_bytes", "settings"):
        assert result[name] == on_card[name], name
    assert (tmp_path / "out.trace.gz").stat().st_size > 100


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        (
            "convnet",
            "--block separable --width 8 --depth 1 --image-size 32 --amp bf16 --channels-last "
            "--optimizer adamw-loop",
        ),
        (
            "gpt",
            "--layers 2 --width 64 --heads 2 --length 16 --vocabulary 100 --amp fp16 "
            "--checkpoint --accumulate 2",
        ),
    ],
)
def test_every_script_trains(stand_in, script, flags):
    result = child.on_real(
        str(SCRIPTS / f"{script}.py"), [*flags.split(), "--batch-size", "2", "--steps", "2"]
    )
    assert result["error"] is None and result["steps"] == 2


def test_of_two_optimizers_the_first_counts_the_steps(stand_in, tmp_path):
    path = tmp_path / "train.py"
    path.write_text("""
import torch
networks = [torch.nn.Linear(2, 2).cuda() for _ in range(2)]
optimizers = [torch.optim.SGD(network.parameters()) for network in networks]
for _ in range(3):
    for network, optimizer in zip(networks, optimizers):
        network(torch.ones(2, device="cuda")).sum().backward()
        optimizer.step()
""")
    assert child.on_real(str(path), [])["steps"] == 3


def test_the_jobs_are_named_once_and_run_smallest_first_then_largest():
    runs, sizes = in_order(), [job.batch_sizes for job in JOBS]
    assert len({job.name for job in JOBS}) == len(JOBS)
    assert len(runs) == len(set(runs)) == sum(map(len, sizes))
    assert [size for _, size in runs[: len(JOBS)]] == [of[0] for of in sizes]
    assert [size for _, size in runs[len(JOBS) : 2 * len(JOBS)]] == [of[-1] for of in sizes]
    for job in JOBS:
        assert job.script.is_file() and list(job.batch_sizes) == sorted(set(job.batch_sizes))
