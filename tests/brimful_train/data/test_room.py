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

from brimful.errors import DoesNotFit
from brimful.measure import host as machine
from brimful_train import fit
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
        plan = vars(pipeline.plan) | {"rows": len(pipeline.rows)}
        return [host.free_bytes, host.ranks, plan]


@pytest.mark.parametrize("machines", [1, 2])
def test_two_ranks_whose_free_memory_differs_choose_the_same_settings(tmp_path, machines):
    first, second = results_of_ranks(chosen, tmp_path, tmp_path, machines)
    assert first == second
    free_bytes, ranks, plan = first
    assert free_bytes == 2 * GIB and plan["workers"] >= 1
    assert ranks * plan["host_bytes"] <= 0.6 * 2 * GIB


def test_strict_refuses_what_there_is_no_room_for_and_without_it_a_warning_is_logged(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(machine, "free_bytes", lambda: 100 * MIB)
    data = {"residence": "loader", "workers": 1}
    fit(ledger_task(100), ledger_config(tmp_path / "kept", data=DataConfig(**data)))
    assert "Warning: workers 1 kept; host memory allows 0 workers" in capfd.readouterr().err
    with pytest.raises(DoesNotFit, match="workers 1"):
        refused = DataConfig(**data, strict=True)
        fit(ledger_task(100), ledger_config(tmp_path / "refused", data=refused))
