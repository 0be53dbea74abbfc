"""The times of steps, by events where there is a card; what a whole run counts, and what of it is
left when it is killed.
"""

import json
import signal
import textwrap
import types

import pytest
import torch

from brimful_inside.probe import report, timing
from brimful_inside.probe.context import ProcessContext
from brimful_inside.probe.memory.device_memory import DeviceMeter
from brimful_inside.probe.probe import Probe
from brimful_inside.probe.timing import POLL_S, EventClock, Held, HostClock, RunCounter, StepTimes
from brimful_inside.wire import TrialConfig
from tests.brimful_inside.helper import config_of

TRAINING = """
import os, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
for epoch in range(3):
    model.train()
    for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        loss = nn.functional.mse_loss(model(x), y) / 2
        loss.backward()
        if number % 2 or number == 4:
            optimizer.step(); optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=10):
            model(x)
last = loss.item()
print(last)
"""
RUN = {"cut": False, "keep_out": False, "worst_batch": False}


def run_counter(held=lambda: None, times=range(1000)):
    return RunCounter(held, clock=iter(times).__next__)


def test_evaluations_are_in_no_time_of_training_and_in_no_count():
    counter = run_counter(times=[0, 1, 3, 10, 12, 13])
    counter.begin()
    counter.step(8, 0.5)
    counter.step(8, 0.25)
    counter.begin()  # an evaluation took from 3 to 10
    counter.step(4, 0.0)
    seen = counter.read(None)
    assert (seen.samples, seen.train_s, seen.loading_s, seen.loss) == (20, 5, 0.75, None)
    counter.step(None, 0.0)
    assert counter.read(None).samples is None


@pytest.mark.parametrize(
    ("times", "waited_s", "steps", "counted"),
    [
        ([3, 4], 2.0, [(8, 2.0)], (8, 3, 2.0)),
        ([0, 9, 10, 11], 0.0, [(None, 1.0), (8, 0.5), (8, 0.0)], (16, 2, 0.5)),
    ],
    ids=["the wait for the first batch", "a first step whose samples are not known"],
)
def test_the_wait_for_the_first_batch_is_of_the_time_and_a_first_step_of_unknown_samples_of_none(
    times, waited_s, steps, counted
):
    counter = run_counter(times=times)
    counter.begin(waited_s)
    for step in steps:
        counter.step(*step)
    seen = counter.read(None)
    assert (seen.samples, seen.train_s, seen.loading_s) == counted


@pytest.mark.parametrize(
    ("retries", "streak"),
    [
        ([0, 0, 0], 0),
        ([5, 5, 5], 0),
        ([0, 1, 1, 2, 2, 3], 1),
        ([0, 1, 2], 2),
        ([0, 1, 1, 2, 4, 9, 9], 3),
    ],
)
def test_retries_of_steps_in_a_row_are_reported_and_those_before_training_are_none(retries, streak):
    readings = iter([*retries, retries[-1]])
    counter = run_counter(lambda: Held(1, 2, next(readings)))
    counter.begin()
    for _ in retries:
        counter.step(1, 0.0)
    seen = counter.read(None)
    assert (seen.retry_streak, seen.alloc_retries) == (streak, retries[-1])


def test_short_steps_are_polled_now_and_then_only():
    polls = []
    counter = run_counter(lambda: polls.append(1), (POLL_S * n / 10 for n in range(1000)))
    counter.begin()
    for _ in range(100):
        counter.step(1, 0.0)
    assert 9 <= len(polls) <= 11


def test_a_whole_run_counts_every_sample_and_reports_its_last_loss_and_its_files_do_not_grow(
    run_trial,
):
    trial = run_trial(TRAINING.replace("range(3)", "range(400)"), **RUN)
    counter = trial.report["counters"]
    assert (trial.report["ended"], trial.report["steps"], len(trial.report["step_s"])) == (
        "script_ended",
        1200,
        1199,
    )
    assert trial.all("progress") == [] and len(trial.all("report")) == 1
    assert len(list(trial.folder.glob("latest-progress-*"))) == 1 and not list(
        trial.folder.glob("*.new")
    )
    assert [seen["batches_seen"] for seen in trial.report["loaders"]] == [2000, 800], (
        "an evaluation is whole as well"
    )
    assert counter["samples"] == 8000
    assert counter["loss"] == pytest.approx(float(trial.stdout))
    assert 0 < counter["loading_s"] < counter["train_s"]
    assert counter["reserved_bytes"] is counter["alloc_retries"] is None


def test_the_loss_of_a_step_is_all_that_went_backward_for_it(run_trial):
    script = """
    import torch
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(3):
        for micro_batch in (1.0, 3.0):
            (weight * micro_batch / 2).sum().backward()
        optimizer.step()
    weight.sum().backward()  # of a step that does not come
    """
    assert run_trial(script, **RUN).report["counters"]["loss"] == 2.0


def test_a_run_that_is_killed_leaves_its_peaks_and_how_far_it_came(run_trial):
    """It trains until a snapshot is on the disk; how soon that is depends on the machine."""
    until = TRAINING.replace("for epoch in range(3):", "for epoch in range(10**9):").replace(
        "    model.eval()\n", "    stop_if_seen()\n    model.eval()\n"
    )
    snapshot = """
    import glob
    def stop_if_seen():
        folder = os.path.dirname(os.environ["BRIMFUL_TRIAL_CONFIG"])
        for path in glob.glob(os.path.join(folder, "latest-report-*.jsonl")):
            if '"steps": 0,' not in open(path).read():
                os.kill(os.getpid(), signal.SIGKILL)
    """
    trial = run_trial(until.replace("torch.manual_seed(0)", textwrap.dedent(snapshot)), **RUN)
    assert trial.exit_code == -signal.SIGKILL, trial.stderr
    assert trial.reports == []
    (path,) = trial.folder.glob("latest-report-*.jsonl")
    report = json.loads(path.read_text())
    assert (report["ended"], report["steps"] > 0) == ("running", True)
    assert report["phases"]["train"]["host_bytes"] > 1 << 20 and report["counters"]["samples"] > 0


def test_a_script_that_fails_late_in_a_run_has_crashed(run_trial):
    trial = run_trial(TRAINING + "raise KeyError('late')\n", **RUN)
    assert (trial.report["ended"], trial.failures[-1]["after_measured"]) == ("crashed", False)


def test_the_allocator_of_a_card_reports_what_it_holds_and_its_retries(run_trial):
    script = """
    import torch
    weight = torch.nn.Parameter(torch.zeros(256, 1024, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(4):
        big = torch.empty((30 + 4 * step) << 20, dtype=torch.uint8, device="cuda")
        weight.sum().backward(); optimizer.step()
        del big
    """
    counter = run_trial(script, device="imaginary", capacity_bytes=60 << 20, **RUN).report[
        "counters"
    ]
    assert counter["alloc_retries"] == 3
    assert 1 << 20 <= counter["allocated_bytes"] <= counter["reserved_bytes"] <= 60 << 20


def test_times_of_the_warm_up_are_not_kept():
    times = StepTimes(HostClock(), 1, 2)
    times.begin()
    assert [times.end_step(number) for number in (1, 2, 3)] == [False, True, True]
    times.restart(4)
    assert [times.end_step(number) for number in (4, 5, 6, 7)] == [False, True, True, False]
    assert len(times.read(wait=True)) == 2


def test_the_latest_steps_count_where_more_are_timed():
    times = StepTimes(HostClock(), 1, 2)
    times.extend(3)
    times.begin()
    counted = [
        times.end_step(number) and (times.passed_over, len(times.read(wait=True)))
        for number in range(1, 8)
    ]
    assert counted == [False, (0, 1), (0, 2), (1, 2), (2, 2), (3, 2), False]


def test_processor_time_is_kept_for_the_measured_steps_alone():
    times = StepTimes(HostClock(), 1, 2)
    times.begin()
    for number in (1, 2, 3, 4):
        sum(range(300_000))
        times.end_step(number)
    assert len(times.processor_s) == 2 and all(seconds > 0 for seconds in times.processor_s)
    times.restart(4)
    assert times.processor_s == []


class Event:
    """Time on a device that lags: an event is reached when `reached` says so."""

    now_ms = 0.0
    reached = True
    waited = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream=None):
        self.at_ms, self.stream = Event.now_ms, stream

    def query(self):
        return Event.reached

    def synchronize(self):
        Event.waited += 1

    def elapsed_time(self, end):
        return end.at_ms - self.at_ms


@pytest.fixture
def clock(monkeypatch):
    for name, value in (("now_ms", 0.0), ("reached", True), ("waited", 0)):
        monkeypatch.setattr(Event, name, value)
    for place, name, value in (
        (timing, "is_started", True),
        (timing, "accelerator_type", "cuda"),
        (torch.cuda, "is_current_stream_capturing", False),
    ):
        monkeypatch.setattr(place, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return monkeypatch


def test_steps_are_timed_by_events_that_are_waited_for_at_the_end_alone(clock):
    times = StepTimes(EventClock(), warmup_steps=1, steps=3)
    times.begin()
    for number in range(1, 7):
        Event.now_ms += 10.0 * number
        Event.reached = False
        times.end_step(number)
    assert Event.waited == 0 and times.read(wait=False) == []
    assert times.read(wait=True) == [0.02, 0.03, 0.04] and Event.waited == 3


def test_events_are_recorded_where_the_parameters_lie(clock):
    clock.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    watch = EventClock()
    times = StepTimes(watch, warmup_steps=1, steps=2)
    for device, stream in (("cpu", None), ("cuda:1", "the stream of cuda:1")):
        times.works_on(torch.device(device))
        assert watch.mark()[0].stream == stream


@pytest.mark.parametrize(
    ("trained", "label"),
    [(torch.device("cuda:1"), "cuda:1"), (torch.device("cpu"), "cuda:3"), (None, "cuda:3")],
)
def test_a_report_names_the_card_that_the_parameters_lie_on(clock, trained, label):
    clock.setattr(report, "is_started", lambda: True)
    clock.setattr(report, "accelerator_type", lambda: "cuda")
    clock.setattr(torch.accelerator, "current_device_index", lambda: 3)
    steps = types.SimpleNamespace(pace=types.SimpleNamespace(device=trained) if trained else None)
    assert (
        report.device_label(
            types.SimpleNamespace(config=TrialConfig("", "accelerator"), steps=steps)
        )
        == label
    )


def test_an_evaluation_between_steps_belongs_to_none(clock):
    times = StepTimes(EventClock(), warmup_steps=1, steps=2)
    times.begin()
    for number in (1, 2, 3):
        Event.now_ms += 500.0
        times.begin()
        Event.now_ms += 7.0
        times.end_step(number)
    assert times.read(wait=True) == [0.007, 0.007]


@pytest.mark.parametrize("why", ["a graph is being captured", "no card was used yet"])
def test_where_no_event_may_be_recorded_the_hosts_time_counts(clock, why):
    clock.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    clock.setattr(timing, "is_started", lambda: why.startswith("a graph"))
    clock.setattr(torch.cuda, "Event", None)
    mark = EventClock().mark()
    assert isinstance(mark, float) and EventClock().seconds(mark, mark + 2.0, wait=True) == 2.0


def test_a_device_in_an_error_state_leaves_the_hosts_time(clock):
    def fails(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    clock.setattr(Event, "synchronize", fails)
    times = StepTimes(EventClock(), warmup_steps=0, steps=1)
    times.begin()
    times.end_step(1)
    assert 0 <= times.read(wait=True)[0] < 5


@pytest.mark.parametrize(("waits", "rates"), [(False, []), (True, [0.5])])
def test_a_device_that_waits_for_a_rank_that_left_is_not_waited_for(clock, tmp_path, waits, rates):
    """Reading anything off it, or waiting for an event that comes after, would never end."""

    class OnTheDevice:
        device = types.SimpleNamespace(type="cuda")

        def __float__(self):
            assert waits, "read off the device"
            return 0.5

        def tolist(self):
            return [float(self)]

        def detach(self, *shape):
            return self

        clone = reshape = detach

    config = config_of(folder=str(tmp_path), device="accelerator", steps=1, warmup_steps=0)
    probe = Probe(
        ProcessContext(config, "rank"),
        DeviceMeter(),
        types.SimpleNamespace(reset=int, peak_bytes=int, is_true=False),
    )
    events = []
    clock.setattr(probe.context, "emit", lambda event, replaces=False: events.append(event))
    probe.times.begin()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    optimizer.param_groups[0]["lr"] = OnTheDevice()
    probe.steps.before(optimizer, (), {}, None)
    probe.losses._of_step = OnTheDevice()
    Event.reached = False
    probe.steps.after(optimizer)
    assert not probe.times.reached()
    probe.reporting.end("steps_done", waits)
    last = [event for event in events if hasattr(event, "losses")][-1]
    assert (Event.waited, len(last.step_s)) == ((1, 1) if waits else (0, 0))
    assert last.losses == last.optimizers[0].learning_rates == rates and last.steps == 1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("workers", "summed", "more", "ahead"),
    [(2, 1, {}, 4), (1, 2, {}, 2), (0, 1, {}, 0), (2, 1, {"worst_batch": True}, 0)],
)
def test_a_speed_is_measured_behind_the_batches_that_workers_made_while_the_first_steps_were_slow(
    run_trial, workers, summed, more, ahead
):
    report = run_trial(
        AHEAD % (workers, summed),
        device="cpu",
        warmup_steps=2,
        steps=3,
        see_eval=False,
        **{"worst_batch": False, **more},
    ).report
    assert (
        report["warmup_steps"] == 2 + ahead
        and len(report["step_s"]) == len(report["loading_s"]) == 3
    )
    assert report["steps"] == 5 + ahead


@pytest.mark.heavy
def test_a_script_that_ends_among_the_batches_made_ahead_has_a_speed_all_the_same(run_trial):
    script = AHEAD.replace("400", "28") % (2, 1)
    report = run_trial(script, warmup_steps=2, steps=3, see_eval=False, worst_batch=False).report
    assert report["steps"] == 7 and report["warmup_steps"] == 4, "of nine steps"
    assert [len(report[name]) for name in ("step_s", "cpu_s", "loading_s")] == [3, 3, 3]
    assert not any("the script ended" in note for note in report["notes"])


AHEAD = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, x in enumerate(DataLoader(torch.ones(400, 8), 4, num_workers=%d)):
    model(x).mean().backward()
    if number %% %d == 0:
        optimizer.step(); optimizer.zero_grad()
"""
