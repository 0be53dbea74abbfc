"""Several ranks: each reports, all end at the same step, and none waits for another."""

import types

import pytest

from brimful_inside import Refused
from brimful_inside.probe.memory.device_memory import DeviceMeter
from brimful_inside.probe.process import exit
from brimful_inside.wire import ALONE_VARIABLE

SCRIPT = """
import os, sys, time, torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(rank=None):
    if rank is not None:
        meeting = "file://" + os.path.abspath("meeting")
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(400, 8), torch.randint(0, 3, (400,)))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 3))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    for epoch in range(40):
        for x, y in DataLoader(data, batch_size=16, sampler=DistributedSampler(data)):
            if "fail" in sys.argv and dist.get_rank() == 1 and epoch == 0:
                raise ValueError("rank 1 has had enough")
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if dist.get_rank() == 0:
            with torch.no_grad():
                for x, y in DataLoader(data, batch_size=50):
                    model.module(x); time.sleep(0.2)

if __name__ == "__main__":
    if "spawn" in sys.argv or "fork" in sys.argv:
        import torch.multiprocessing as mp
        mp.start_processes(main, nprocs=2, start_method=sys.argv[1])
    else:
        main()
"""


TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")


@pytest.mark.heavy
@pytest.mark.parametrize(("through", "argv"), [(TORCHRUN, ()), ((), ("spawn",)), ((), ("fork",))])
def test_all_ranks_end_at_the_same_step_and_one_that_evaluates_alone_is_waited_for(
    run_trial, through, argv
):
    trial = run_trial(SCRIPT, through=through, argv=argv)
    assert trial.exit_code == 0 and trial.failures == [], trial.stderr
    trained = [report for report in trial.reports if report["steps"]]
    ended = [(r["rank"], r["world_size"], r["steps"], r["ended"]) for r in trained]
    assert ended == [(0, 2, 4, "steps_done"), (1, 2, 4, "steps_done")]
    for report in trained:
        (optimizer,) = report["optimizers"]
        assert (optimizer["name"], optimizer["steps"]) == ("AdamW", 4)
        assert report["samples_per_step"] == [16] * 4
    assert "eval" in trained[0]["phases"]
    roles = [
        [f["role"] for name, f in events if name == "process_started"]
        for events in trial.events.values()
    ]
    assert roles.count(["child", "rank"] if argv else ["rank"]) == 2, (
        "a child of multiprocessing is a child until it steps"
    )


@pytest.mark.heavy
def test_what_a_spawned_rank_raises_is_reported(run_trial):
    trial = run_trial(SCRIPT, argv=("spawn", "fail"))
    assert trial.exit_code == 1 and "ValueError" in [failure["type"] for failure in trial.failures]


def test_what_a_forked_child_raises_is_reported_once_it_has_stepped(run_trial):
    trial = run_trial(
        """
        import multiprocessing, torch
        def train():
            weight = torch.nn.Parameter(torch.ones(2))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            weight.sum().backward(); optimizer.step()
            raise KeyError("lost")
        process = multiprocessing.get_context("fork").Process(target=train)
        process.start()
        process.join()
        """
    )
    assert [failure["type"] for failure in trial.failures] == ["KeyError"]
    assert (trial.report["steps"], trial.report["ended"]) == (1, "crashed")


def test_a_rank_of_imaginary_cards_that_is_at_work_does_not_follow_another_out(monkeypatch):
    allocations = iter([1, 2, 3, 3, 3])  # memory is taken three times, and then no more
    device = type("Busy", (), {"allocations": property(lambda self: next(allocations))})()
    seconds = iter([0, 0, 1, 1, 2, 2, 3, 5])  # read once more where allocations are new
    monkeypatch.setattr(exit.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(exit, "IDLE_S", 0.5)
    idle = exit._Idle(types.SimpleNamespace(device=device))
    assert [idle.long_enough() for _ in range(5)] == [False, False, False, True, True]


def test_a_rank_of_real_cards_may_be_waiting_from_the_beginning():
    assert exit._Idle(types.SimpleNamespace(device=DeviceMeter())).long_enough()


def test_a_rank_that_was_started_alone_waits_for_nobody(monkeypatch):
    monkeypatch.setattr(exit, "world", lambda: (3, 64))
    assert exit.others() == 63
    monkeypatch.setenv(ALONE_VARIABLE, "1")
    assert exit.others() == 0


def test_ranks_that_torchrun_started_may_start_no_more(monkeypatch):
    started = []
    for name, value in (("TORCHELASTIC_RUN_ID", "none"), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(
        Refused, match="torchrun started this process as rank 1 of 2, and the script starts 4 ranks"
    ):
        exit._start_processes(lambda *args: started.append(args), print, (), 4)
    exit._start_processes(lambda *args: started.append(args), print, (), 1)
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    exit._start_processes(lambda *args: started.append(args), print, (), 4)
    assert [args[2] for args in started] == [1, 4]
