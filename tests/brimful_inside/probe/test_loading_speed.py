"""The training loader is timed in processes of its own, and the script notices nothing."""

import itertools
import os
import types
from collections.abc import Callable, Iterable

import pytest
import torch

from brimful_inside.probe import loading_speed
from brimful_inside.wire import LoadingSpeed
from tests.brimful_inside import helper

TRAIN = """
import random, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
torch.manual_seed(0); random.seed(0)

class Rows(Dataset):
    drawn = 0
    def __len__(self): return 40
    def __getitem__(self, i):
        self.drawn += 1
        noise = random.random()
        return torch.full((8,), float(i)) + noise, i

class Stream(IterableDataset):
    def __iter__(self): return iter([(torch.ones(8), 1)] * 64)

def train(data, device="cpu", **more):
    model = torch.nn.Linear(8, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, i in DataLoader(data, 4, **more):  # which nothing but the loop keeps
        loss = model(x.to(device)).mean(); loss.backward(); optimizer.step(); optimizer.zero_grad()
        if device == "cpu":
            print(i.tolist(), loss.item(), flush=True)
"""


@pytest.fixture
def run_trial(tmp_path_factory):
    """Each trial in a folder of its own."""
    return lambda script, **config: helper.run_trial(
        tmp_path_factory.mktemp("trial"), script, **config
    )


def rates(trial) -> dict:
    """Samples per second by number of workers."""
    (loader,) = trial.report["loaders"]
    speeds = loader["speeds"]
    for speed in speeds.values():
        assert speed["low"] <= speed["median"] <= speed["high"]
        assert speed["waited"] is None or 0 <= speed["waited"] <= 1
    return {workers: speed["median"] for workers, speed in speeds.items()}


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [0, 2])
def test_the_script_draws_and_trains_as_without(run_trial, workers) -> None:
    script = TRAIN + f"train(Rows(), shuffle=True, num_workers={workers})\n"
    plain, timed = run_trial(script), run_trial(script, time_loader=8)
    assert timed.stdout == plain.stdout and plain.stdout
    assert (
        rates(timed).keys() == ({"1", "2"} if workers else {"1"}) and min(rates(timed).values()) > 0
    )
    assert rates(plain) == {} and timed.failures == []


@pytest.mark.heavy
def test_workers_are_started_as_the_script_starts_them(run_trial) -> None:
    starts = "def start(number): Rows.begun = True\nclass Begun(Rows):\n"
    starts += "    def __getitem__(self, i): return super().__getitem__(i * Rows.begun)\n"
    train = "train(Begun(), shuffle=True, num_workers=3, worker_init_fn=start)\n"
    assert rates(run_trial(TRAIN + starts + train, time_loader=8)).keys() == {"1", "3"}


@pytest.fixture
def timed(monkeypatch) -> Callable[..., LoadingSpeed | None]:
    """The speed of so many workers, where each batch comes so long after the one before it."""
    now = [0.0]
    clock = types.SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(loading_speed, "time", clock)

    def receive(workers: int, pauses_s: Iterable[float], most: int) -> LoadingSpeed | None:
        batches = loading_speed._Batches(40)

        class Iterator:
            _workers = [types.SimpleNamespace(pid=os.getpid())] * workers

            def __iter__(self):
                for indices, pause_s in zip(batches, pauses_s, strict=False):
                    now[0] += pause_s
                    yield torch.zeros(len(indices), 8)

        return loading_speed._receive(Iterator(), batches, most, False)

    return receive


def test_the_start_of_the_workers_is_no_part_of_how_fast_they_load(timed) -> None:
    starts_s = [0.8, 0.8, 0.8]
    speed = timed(3, itertools.chain(starts_s, itertools.repeat(0.001)), 8)
    assert speed.median == pytest.approx(8 / 0.001, rel=0.01)


@pytest.mark.parametrize("workers", [1, 4])
def test_of_slow_samples_each_worker_counts(timed, workers) -> None:
    """A batch of each comes at the same time."""
    speed = timed(workers, itertools.cycle([0.3] + [0.0] * (workers - 1)), 1)
    assert (speed.low, speed.high) == pytest.approx((workers / 0.3, workers / 0.3))


@pytest.mark.heavy
def test_a_loader_is_timed_on_an_imaginary_card_without_touching_its_trace(run_trial) -> None:
    script = TRAIN + "train(Rows(), 'cuda', shuffle=True, num_workers=2, pin_memory=True)\n"
    traces = []
    for more in ({}, {"time_loader": 8}):
        trial = run_trial(script, device="imaginary", trace=True, worst_batch=True, **more)
        assert trial.report["steps"] == 4 and trial.failures == []
        assert rates(trial).keys() == ({"1", "2"} if more else set())
        traces.append((trial.folder / "trace-0.jsonl").read_text())
    assert traces[0] == traces[1]


def test_a_stream_is_timed_to_its_end_and_a_data_set_on_the_card_is_not(run_trial) -> None:
    assert rates(run_trial(TRAIN + "train(Stream())\n", time_loader=4)).keys() == {"1"}
    on_card = (
        TRAIN + "x = torch.ones(40, 8, device='cuda')\ntrain([(row, 1) for row in x], 'cuda')\n"
    )
    trial = run_trial(on_card, device="imaginary", time_loader=4)
    assert rates(trial) == {} and trial.report["steps"] == 4 and trial.failures == []
