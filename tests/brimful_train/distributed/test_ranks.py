"""Several processes: decisions made once, an error on one rank that leaves nobody waiting, and
updates that are exact.
"""

import contextlib
import dataclasses
import itertools
from pathlib import Path
from unittest import mock

import pytest
import torch

from brimful.errors import UsageError
from brimful_train import BatchingConfig, OptimizerConfig, Task, fit
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.distributed.ranks import device_for
from tests.brimful_train.ledger import (
    Faults,
    farthest,
    ledger_config,
    ledger_task,
    network_config,
    network_task,
    results_of_ranks,
    shares,
    statistics,
    weights,
)

pytestmark = pytest.mark.heavy  # processes of their own

# Each row: samples, micro-batch, accumulation, faults of rank 0, faults of rank 1, options of the
# task.
SCENARIOS = {
    "nothing fails": (50, 4, 2, [], [], {}),
    "forward on rank 1 alone": (50, 4, 2, [], [("forward", 3)], {}),
    "backward on rank 0 alone": (50, 4, 2, [("backward", 5)], [], {}),
    "both, in places of their own": (
        50,
        16,
        1,
        [("backward", 0), ("forward", 2)],
        [("forward", 2)],
        {},
    ),
    "the update of rank 1 alone": (50, 4, 2, [], [("update", 2)], {}),
    "evaluation on rank 0 alone": (50, 4, 2, [("eval", 1)], [], {}),
    "a sum with a count, forward on rank 1": (50, 4, 2, [], [("forward", 2)], {"as_sum": True}),
    "fewer samples left than ranks": (9, 4, 1, [], [], {}),
    "fewer samples left than ranks, as a sum": (9, 4, 1, [], [], {"as_sum": True}),
    "one sample": (1, 1, 1, [], [], {}),
    "a loss that does not decompose, on rank 1": (
        50,
        4,
        2,
        [],
        [("forward", 3)],
        {"decomposes": False},
    ),
}


def scenarios(folder: str) -> dict:
    """All scenarios in one group of processes, one after another: starting processes is what takes
    time here.
    """
    rank = torch.distributed.get_rank()
    results: dict[str, dict | list] = {
        name: _scenario(Path(folder) / name.replace(" ", "-"), rank, *row)
        for name, row in SCENARIOS.items()
    }
    results["memory"] = _failing(
        Path(folder) / "memory", ledger_task(40, Faults(capacity=0) if rank == 1 else None)
    )
    broken = ledger_task(40)
    failing = dataclasses.replace(broken, loss=lambda model, batch: 1 / 0)
    results["error"] = _failing(Path(folder) / "error", failing if rank == 1 else broken)
    results["two"] = _two_against_one(Path(folder) / "two", rank)
    return results


def _scenario(
    out: Path,
    rank: int,
    samples: int,
    micro: int,
    accumulation: int,
    first: list,
    second: list,
    options: dict,
) -> dict:
    injected = Faults([first, second][rank])
    task = ledger_task(samples, injected, eval_samples=samples, **options)
    with injected.in_the_update():
        result = fit(
            task,
            ledger_config(out, batch=BatchingConfig(micro_batch=micro, accumulation=accumulation)),
        )
    return {
        "shares": shares(task).tolist(),
        "hit": len(injected.hit),
        "samples": result.samples,
        "seen": result.measures["seen"],
        "statistics": statistics(out),
    }


def _failing(out: Path, task: Task) -> dict:
    try:
        fit(task, ledger_config(out, batch=BatchingConfig(micro_batch=4)))
    except Exception as error:
        return {"kind": type(error).__name__, "words": str(error)}
    return {}


def resuming(folder: str) -> dict:
    """Rank 1 cannot load the checkpoint that rank 0 goes on from, as on a machine without the
    folder.
    """
    fit(ledger_task(40), ledger_config(Path(folder) / "out", batch=BatchingConfig(micro_batch=4)))
    error = UsageError("There is no checkpoint here.")
    with (
        mock.patch.object(Checkpoints, "load", side_effect=error)
        if torch.distributed.get_rank() == 1
        else contextlib.nullcontext()
    ):
        return _failing(Path(folder) / "out", ledger_task(40))


def _two_against_one(out: Path, rank: int) -> list:
    task = network_task(faults=Faults([("backward", 4)] if rank == 1 else []))
    batch = BatchingConfig(micro_batch=4, accumulation=2)
    fit(task, network_config(out, batch=batch, optimizer=OptimizerConfig("sgd", lr=0.1)))
    return [weight.tolist() for weight in weights(task)]


def threads(folder: str) -> list[int]:
    """How many threads this process has after one training and after another."""
    counts = []
    for name in ("first", "second"):
        fit(
            ledger_task(40), ledger_config(Path(folder) / name, batch=BatchingConfig(micro_batch=4))
        )
        counts.append(len(list(Path("/proc/self/task").iterdir())))
    return counts


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenarios")
    return results_of_ranks(scenarios, folder, folder)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "decompose" not in name])
def test_each_sample_is_trained_on_once_in_the_same_effective_batches(name, results):
    samples, micro, accumulation, *_ = SCENARIOS[name]
    effective = micro * accumulation * 2
    sizes = [min(effective, samples - start) for start in range(0, samples, effective)]
    expected = sorted(1 / size for size in sizes for _ in range(size))
    for rank in results:
        assert sorted(rank[name]["shares"]) == pytest.approx(expected)
        assert rank[name]["samples"] == samples


@pytest.mark.parametrize("name", SCENARIOS)
def test_ranks_end_with_the_same_weights_and_what_was_planned_to_fail_did(name, results):
    assert results[0][name]["shares"] == results[1][name]["shares"]
    _, _, _, *plans, _ = SCENARIOS[name]
    assert [rank[name]["hit"] for rank in results] == [len(plan) for plan in plans]


@pytest.mark.parametrize("name", SCENARIOS)
def test_evaluation_meets_each_sample_once_over_all_ranks(name, results):
    """`seen` is the sum of indices over the number of batches: a whole one where each was there
    once.
    """
    for rank in results:
        samples, total = SCENARIOS[name][0], rank[name]["seen"]
        assert (
            (sum(range(samples)) / total) % 1 == pytest.approx(0, abs=1e-9)
            if total
            else samples == 1
        )


def test_a_loss_that_does_not_decompose_is_cut_on_all_ranks_alike(results):
    name = "a loss that does not decompose, on rank 1"
    report = results[0][name]
    assert report["samples"] == 50 and report["statistics"]["micro_batch"] == 2
    assert report["statistics"]["updates"] > -(-50 // 16)
    # Each update's samples once: as many have the share 1 / n as make whole updates of n samples,
    # over both ranks.
    sizes = sorted(round(1 / share) for share in report["shares"])
    assert [1 / size for size in sizes] == pytest.approx(sorted(report["shares"], reverse=True))
    assert all(len(list(group)) % size == 0 for size, group in itertools.groupby(sizes))
    assert max(sizes) == 16 and min(sizes) < 16


def test_a_smaller_batch_is_one_decision_for_all_ranks_of_training_or_evaluation_alone(results):
    training, evaluation = (
        results[0][f"{what} alone"]["statistics"]
        for what in ("forward on rank 1", "evaluation on rank 0")
    )
    assert (training["micro_batch"], training["eval_batch"], training["recoveries"]) == (2, 12, 1)
    assert (evaluation["micro_batch"], evaluation["eval_batch"]) == (4, 6)


def test_a_sample_that_does_not_fit_on_one_rank_ends_all_of_them_alike(results):
    assert [rank["memory"]["kind"] for rank in results] == ["DoesNotFit", "DoesNotFit"]
    assert (
        "memory of rank 1" in results[0]["memory"]["words"]
        and "single sample" in results[1]["memory"]["words"]
    )


def test_an_error_on_one_rank_ends_all_of_them_and_none_hangs(results):
    assert [rank["error"]["kind"] for rank in results] == ["RankFailed", "ZeroDivisionError"]
    assert "Rank 1 ended with an error" in results[0]["error"]["words"]


def test_a_checkpoint_that_one_rank_cannot_load_ends_all_of_them_and_none_hangs(tmp_path):
    results = results_of_ranks(resuming, tmp_path, tmp_path, timeout_s=45)
    assert [rank["kind"] for rank in results] == ["RankFailed", "UsageError"]


def test_a_training_leaves_no_thread_of_its_own_group_behind(tmp_path):
    for first, second in results_of_ranks(threads, tmp_path, tmp_path):
        assert first == second


def test_two_ranks_train_what_one_does_with_the_same_effective_batch(results, tmp_path):
    """Though one of them ran out of memory. Sums are in another order: seen 3e-8 apart."""
    alone = network_task()
    fit(
        alone,
        network_config(
            tmp_path, batch=BatchingConfig(micro_batch=16), optimizer=OptimizerConfig("sgd", lr=0.1)
        ),
    )
    assert farthest(weights(alone), [torch.tensor(weight) for weight in results[1]["two"]]) < 1e-6


def test_a_device_that_is_none_is_refused_by_its_name():
    with pytest.raises(UsageError, match="'gpu' is no device"):
        device_for("gpu")
