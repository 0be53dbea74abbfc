"""What loading may take is measured once: ranks that see different memory choose the same, and a
container's limit holds.
"""

import os
import socket
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch.utils.data import Dataset

from brimful.decide.loading import Host
from brimful.errors import DoesNotFit
from brimful.measure import host as machine
from brimful_train import BatchingConfig, fit
from brimful_train.batching import plan_batches_on
from brimful_train.config import DataConfig
from brimful_train.data import workers as workers_module
from brimful_train.data.epoch_sampler import EpochSampler
from brimful_train.data.pipeline import DataPipeline
from brimful_train.data.room import Room, shared_host
from brimful_train.distributed.ranks import Ranks
from tests.brimful_train.cgroups import stand_in_cgroup
from tests.brimful_train.ledger import ledger_config, ledger_task, results_of_ranks

MIB, GIB = 1 << 20, 1 << 30
CPU = torch.device("cpu")


class Slow(Dataset):
    """Samples of 8 MiB that take a while, so that workers are worth it."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.03)
        return torch.zeros(8 * MIB, dtype=torch.uint8)


def chosen(folder: str, machines: str) -> list:
    """What this rank plans, on a machine whose cgroup leaves the first rank 2 GiB and the second
    24.
    """
    rank = int(os.environ["RANK"])
    group = stand_in_cgroup(Path(folder, f"cgroup-{rank}"), (2, 24)[rank] * GIB)
    name = socket.gethostname() if machines == "1" else f"machine-{rank}"
    with (
        mock.patch.object(machine, "Cgroup", lambda: group),
        mock.patch.object(machine, "cores", lambda: 32),
        mock.patch.object(machine, "shm_free_bytes", lambda: 8 * GIB),
        mock.patch.object(machine.psutil, "virtual_memory", lambda: mock.Mock(available=24 * GIB)),
        mock.patch.object(socket, "gethostname", lambda: name),
        mock.patch.object(
            workers_module, "_rate", lambda loader, count: (0.1 / count, 0.001, 100 * MIB)
        ),
    ):
        ranks = Ranks(CPU)
        host = shared_host(CPU, ranks)
        sampler = EpochSampler(64, seed=0, micro_batch=4, accumulation=1, ranks=2, rank=rank)
        pipeline = DataPipeline(Slow(), sampler, CPU, DataConfig(), 0, ranks, Room(host, None))
        ladder = ledger_config(
            Path(folder), data=DataConfig(host_policy="ladder"), batch=BatchingConfig()
        )
        batching, _ = plan_batches_on(host, ladder, 2, 1000, 1000)
        plan = vars(pipeline.plan) | {"rows": len(pipeline.rows)}
        return [host.free_bytes, host.ranks, plan, batching.micro_batch]


@pytest.mark.parametrize("machines", [1, 2])
def test_two_ranks_whose_free_memory_differs_choose_the_same_settings(tmp_path, machines):
    first, second = results_of_ranks(chosen, tmp_path, tmp_path, machines)
    assert first == second
    free_bytes, ranks, plan, micro_batch = first
    assert free_bytes == 2 * GIB and plan["workers"] >= 1
    assert ranks * plan["host_bytes"] <= 0.6 * 2 * GIB
    assert micro_batch == 1, "by the ladder of the first rank's memory"


def on_the_ladder(gib: float, **config) -> tuple:
    batch = BatchingConfig(**config.pop("batch", {}))
    wanted = ledger_config(
        Path("out"), batch=batch, data=DataConfig(host_policy="ladder", **config)
    )
    planned, warnings = plan_batches_on(
        Host(int(gib * GIB), 8, None, cards=1), wanted, 1, 1000, 1000
    )
    return planned, {row.name: row for row in planned.rows}, warnings


def test_the_ladder_makes_a_batch_that_nobody_gave_smaller_in_an_effective_batch_that_stays():
    planned, rows, warnings = on_the_ladder(10)
    assert (planned.micro_batch, planned.accumulation, planned.effective, planned.eval_batch) == (
        4,
        16,
        64,
        8,
    )
    assert (rows["micro_batch"].requested, rows["micro_batch"].effective) == (
        64,
        4,
    ) and not warnings
    assert "8 to 13 GiB" in rows["micro_batch"].why and "8 to 13 GiB" in rows["eval_batch"].why
    assert on_the_ladder(20)[0].micro_batch == 64


def test_the_ladder_keeps_a_batch_that_was_given_with_a_warning():
    given, rows, warnings = on_the_ladder(10, batch={"micro_batch": 32})
    assert given.micro_batch == 32 and rows["micro_batch"].effective == 32
    assert "the ladder would take 4" in warnings[0].problem
    preset, _, warnings = on_the_ladder(10, batch={"micro_batch": 32}, given="batch.effective")
    assert preset.micro_batch == 4 and not warnings, "a preset's may be lowered"


def test_strict_refuses_what_there_is_no_room_for_and_without_it_a_warning_is_logged(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(machine, "free_bytes", lambda: 100 * MIB)
    ladder, batch = {"host_policy": "ladder", "workers": 0}, BatchingConfig(micro_batch=8)
    fit(ledger_task(40), ledger_config(tmp_path / "kept", batch=batch, data=DataConfig(**ladder)))
    assert "Warning: micro_batch 8 kept; the ladder would take 1." in capfd.readouterr().err
    with pytest.raises(DoesNotFit, match="micro_batch 8"):
        fit(
            ledger_task(40),
            ledger_config(
                tmp_path / "refused", batch=batch, data=DataConfig(**ladder, strict=True)
            ),
        )
