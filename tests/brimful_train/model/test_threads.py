"""How many threads compute: fewer beside other work, as many as the user says, and after a
checkpoint as many as before it.
"""

import dataclasses
from unittest import mock

import pytest
import torch
from torch import nn

from brimful.decide.loading import Host
from brimful.measure import host as machine
from brimful_train import BatchingConfig, OptimizerConfig, fit
from brimful_train.model.threads import choose_threads
from tests.brimful_train.ledger import (
    Stopped,
    log_rows,
    network_config,
    network_task,
    same,
    stopping,
    weights,
)

pytestmark = pytest.mark.usefixtures("four_cores")
CPU, CARD = torch.device("cpu"), torch.device("cuda")


def busy(monkeypatch, cores):
    monkeypatch.setattr(machine, "busy_cores", lambda: cores)


def chosen(device=CPU, ranks=1, cores=4):
    row = choose_threads(Host(1 << 34, cores, None, ranks), device)
    assert row.effective == torch.get_num_threads()
    return row.requested, row.effective, row.why


@pytest.mark.parametrize(
    ("others", "cores", "ranks", "left", "words"),
    [
        (0, 4, 1, 4, "4 cores"),
        (1, 4, 1, 3, "4 cores, 1 busy with other work"),
        (3, 4, 1, 1, "4 cores, 3 busy with other work"),
        (4, 4, 1, 1, "4 cores, 4 busy with other work"),
        (0, 4, 2, 2, "4 cores for 2 ranks"),
        (0, 3, 1, 3, "3 cores"),  # by the quota of a container
    ],
)
def test_as_many_threads_compute_as_cores_are_idle_shared_by_the_ranks_of_the_machine(
    monkeypatch, others, cores, ranks, left, words
):
    busy(monkeypatch, others)
    assert chosen(cores=cores, ranks=ranks) == (None, left, f"{words}; OMP_NUM_THREADS overrules")


def test_beside_a_card_nothing_is_measured_and_only_too_many_ranks_take_threads(monkeypatch):
    busy(monkeypatch, 3)
    for ranks, threads in ((1, 4), (4, 1)):
        assert chosen(CARD, ranks)[1] == threads


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", ""])
def test_a_number_in_the_environment_or_that_the_script_set_stays(monkeypatch, name):
    busy(monkeypatch, 3)
    if name:
        monkeypatch.setenv(name, "4")
    else:
        torch.set_num_threads(3)
    assert chosen() == (
        (4, 4, f"{name} says so") if name else (3, 3, "the script called torch.set_num_threads")
    )


def test_cores_count_as_busy_by_the_kernels_count_of_those_that_this_process_may_use(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(machine, "allowed_cores", lambda: [0, 1, 3])
    shares = [50.0, 60.0, 100.0, 9.0]
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda seconds, percpu: shares)
    assert machine.busy_cores() == 1


def test_where_a_core_has_two_threads_pytorchs_own_number_is_that_of_the_cores(monkeypatch):
    monkeypatch.setattr(machine, "allowed_cores", lambda: list(range(8)))
    busy(monkeypatch, 6)
    assert chosen(cores=8)[:2] == (None, 2), "4 threads on 8 were PyTorch's own choice"


@pytest.mark.parametrize(
    ("siblings", "cores"), [({0: "0,4", 1: "1,5", 4: "0,4"}, 2), (dict.fromkeys((0, 1, 4), ""), 3)]
)
def test_two_threads_of_a_core_are_one_physical_core_where_the_kernel_says_so(
    monkeypatch, siblings, cores
):
    monkeypatch.undo()
    monkeypatch.setattr(machine, "allowed_cores", lambda: [0, 1, 4])
    monkeypatch.setattr(machine, "_text", lambda path: siblings[int(path.parts[-3][3:])])
    assert machine.physical_cores() == cores


def threads_row(folder):
    (row,) = [row for row in log_rows(folder, "settings")[-1]["rows"] if row["name"] == "threads"]
    return row["requested"], row["effective"], row["why"]


def trained(folder, threads_in_use):
    """A training whose loss notes how many threads compute."""
    task = network_task()
    noted = dataclasses.replace(
        task,
        loss=lambda model, batch: (
            threads_in_use.append(torch.get_num_threads()) or task.loss(model, batch)
        ),
    )
    fit(noted, network_config(folder))


def killed(folder):
    """After the first epoch and its checkpoint."""
    with pytest.raises(Stopped):
        fit(stopping(network_task(), 12), network_config(folder))


def test_a_training_that_goes_on_under_another_load_ends_bit_for_bit_as_if_never_stopped(
    monkeypatch, tmp_path
):
    def task():
        made = network_task(256, eval_samples=0)
        torch.manual_seed(0)
        # gradients are a multiple of a sum, whose last bits depend on the threads
        return dataclasses.replace(
            made,
            model=nn.Linear(6, 1024),
            loss=lambda model, batch: model(batch[0]).square().sum().square(),
        )

    def config(name):
        rate = OptimizerConfig("sgd", lr=1e-7, momentum=0.9, weight_decay=0.0)
        batch = BatchingConfig(micro_batch=64)
        return network_config(tmp_path / name, optimizer=rate, batch=batch)

    busy(monkeypatch, 3)
    fit(unstopped := task(), config("unstopped"))
    with pytest.raises(Stopped):
        fit(stopping(task(), 5), config("killed"))
    busy(monkeypatch, 0)
    fit(resumed := task(), config("killed"))
    requested, effective, why = threads_row(tmp_path / "killed")
    assert (requested, effective) == (None, 1) and "before the checkpoint" in why
    assert torch.get_num_threads() == 4, "as before the training"
    fit(other := task(), config("other"))
    assert same(weights(resumed), weights(unstopped))
    assert not same(weights(other), weights(unstopped)), "this test can fail"


def test_what_the_user_says_now_goes_before_the_checkpoint_and_the_difference_is_named(
    monkeypatch, tmp_path
):
    killed(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    torch.set_num_threads(2)
    trained(tmp_path, in_use := [])
    assert set(in_use) == {2}
    assert threads_row(tmp_path) == (
        2,
        2,
        "OMP_NUM_THREADS says so; 4 before the checkpoint: the last bits of results may differ",
    )


def test_a_checkpoint_of_a_machine_with_other_cores_binds_nobody(monkeypatch, tmp_path):
    with mock.patch.object(machine, "cores", lambda: 1):
        killed(tmp_path)
    trained(tmp_path, in_use := [])
    assert set(in_use) == {4} and "1 before the checkpoint" in threads_row(tmp_path)[2]
