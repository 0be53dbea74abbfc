"""A real card as the probe meets it, with the functions of torch replaced by ones that count."""

import types

import pytest
import torch

from brimful_inside.probe import report, timing
from brimful_inside.probe.context import ProcessContext
from brimful_inside.probe.memory import device_memory
from brimful_inside.probe.memory.device_memory import AcceleratorMeter, DeviceMeter
from brimful_inside.probe.probe import Probe
from brimful_inside.probe.timing import EventClock, StepTimes
from brimful_inside.wire import TrialConfig


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
def card(monkeypatch):
    monkeypatch.setattr(Event, "now_ms", 0.0)
    monkeypatch.setattr(Event, "reached", True)
    monkeypatch.setattr(Event, "waited", 0)
    for module in (timing, device_memory):
        monkeypatch.setattr(module, "is_started", lambda: True)
    monkeypatch.setattr(timing, "accelerator_type", lambda: "cuda")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return monkeypatch


def test_steps_are_timed_by_events_that_are_waited_for_at_the_end_alone(card):
    times = StepTimes(EventClock(), warmup_steps=1, steps=3)
    times.begin()
    for number in range(1, 7):
        Event.now_ms += 10.0 * number
        Event.reached = False
        times.end_step(number)
    assert Event.waited == 0 and times.read(wait=False) == []
    assert times.read(wait=True) == [0.02, 0.03, 0.04] and Event.waited == 3


def test_events_are_recorded_where_the_parameters_lie(card):
    card.setattr(torch.cuda, "current_stream", lambda device: f"the stream of {device}")
    watch = EventClock()
    times = StepTimes(watch, warmup_steps=1, steps=2)
    times.works_on(torch.device("cpu"))
    assert watch.mark()[0].stream is None
    times.works_on(torch.device("cuda:1"))
    assert watch.mark()[0].stream == "the stream of cuda:1"


@pytest.mark.parametrize(
    ("trained", "label"), [(torch.device("cuda:1"), "cuda:1"), (torch.device("cpu"), "cuda:3"), (None, "cuda:3")]
)
def test_a_report_names_the_card_that_the_parameters_lie_on(card, trained, label):
    card.setattr(report, "is_started", lambda: True)
    card.setattr(report, "accelerator_type", lambda: "cuda")
    card.setattr(torch.accelerator, "current_device_index", lambda: 3)
    steps = types.SimpleNamespace(pace=types.SimpleNamespace(device=trained) if trained else None)
    assert report.device_label(types.SimpleNamespace(config=TrialConfig("", "accelerator"), steps=steps)) == label


def test_an_evaluation_between_steps_belongs_to_none(card):
    times = StepTimes(EventClock(), warmup_steps=1, steps=2)
    times.begin()
    for number in (1, 2, 3):
        Event.now_ms += 500.0
        times.begin()
        Event.now_ms += 7.0
        times.end_step(number)
    assert times.read(wait=True) == [0.007, 0.007]


def test_no_event_is_recorded_into_a_graph_that_is_captured(card):
    card.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    card.setattr(torch.cuda, "Event", None)
    mark = EventClock().mark()
    assert isinstance(mark, float) and EventClock().seconds(mark, mark + 2.0, wait=True) == 2.0


def test_a_device_in_an_error_state_leaves_the_hosts_time(card):
    def fails(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    card.setattr(Event, "synchronize", fails)
    times = StepTimes(EventClock(), warmup_steps=0, steps=1)
    times.begin()
    times.end_step(1)
    (seconds,) = times.read(wait=True)
    assert 0 <= seconds < 5


@pytest.mark.parametrize(("waits", "rates"), [(False, []), (True, [0.5])])
def test_a_device_that_waits_for_a_rank_that_left_is_not_waited_for(card, tmp_path, waits, rates):
    """Reading anything off it, or waiting for an event that comes after, would never end."""

    class OnTheDevice:
        device = types.SimpleNamespace(type="cuda")

        def __float__(self):
            assert waits, "read off the device"
            return 0.5

        def detach(self):
            return self

        clone = detach

    config = TrialConfig(folder=str(tmp_path), device="accelerator", steps=1, warmup_steps=0)
    probe = Probe(
        ProcessContext(config, "rank"), DeviceMeter(), types.SimpleNamespace(reset=int, peak_bytes=int, is_true=False)
    )
    events = []
    card.setattr(probe.context, "emit", lambda event, replaces=False: events.append(event))
    probe.times.begin()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    optimizer.param_groups[0]["lr"] = OnTheDevice()
    probe.steps.before(optimizer, (), {}, None)
    probe.losses._kept.append(OnTheDevice())
    Event.reached = False
    probe.steps.after(optimizer)
    assert not probe.times.reached()
    probe.report_end("steps_done", waits)
    last = [event for event in events if hasattr(event, "losses")][-1]
    assert (Event.waited, len(last.step_s)) == ((1, 1) if waits else (0, 0))
    assert last.losses == last.optimizers[0].learning_rates == rates and last.steps == 1


def test_of_several_cards_the_fullest_counts_and_the_context_is_added(card):
    peaks = types.SimpleNamespace(known=True, peaks=lambda device: [(100, 200), (300, 350)][device], reset_on=resets.append)
    card.setattr(torch.accelerator, "device_count", lambda: 2)
    card.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000) if device == 1 else pytest.fail("the other card"))
    card.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    device = AcceleratorMeter(peaks)
    device.start("train")
    assert resets == [0, 1]
    assert device.peaks() == (300, 350, 350 + 3500) and device.context_bytes == 3500
    card.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index == 0, raising=False)
    assert device.peaks() == (300, 350, None), "nothing of ours makes a context on a card that the script does not use"


resets: list = []


def test_a_kind_of_device_whose_memory_torch_does_not_tell_is_unknown_and_not_zero(card):
    def raises(device):
        raise NotImplementedError("no statistics of this kind of device")

    card.setattr(torch.accelerator, "device_count", lambda: 1)
    for begins in (True, False):
        device = AcceleratorMeter(types.SimpleNamespace(known=True, peaks=raises, reset_on=raises))
        if begins:
            device.start("train")
        assert device.peaks() == (None, None, None)


def test_memory_that_runs_out_is_heard_of_by_the_allocators_observer(card):
    observers, heard = [], []
    card.setattr(torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False)
    card.setattr(torch.accelerator, "device_count", lambda: 1)
    device = AcceleratorMeter(types.SimpleNamespace(known=True, peaks=lambda d: (0, 0), reset_on=lambda d: None))
    device.on_out_of_memory(lambda error, message: heard.append((error, message)))
    device.start("train")
    device.start("eval")
    (observer,) = observers
    observer(0, 7, 1000, 3)
    assert heard[0][0] is None and "Tried to allocate 7 bytes on cuda:0" in heard[0][1]


def test_before_the_script_has_used_a_card_nothing_starts_one(monkeypatch):
    for module in (timing, device_memory):
        monkeypatch.setattr(module, "is_started", lambda: False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: pytest.fail("asked"))
    monkeypatch.setattr(torch.cuda, "Event", None)
    device = AcceleratorMeter(types.SimpleNamespace(known=True, reset_on=None, peaks=None))
    device.start("setup")
    assert device.peaks() == (0, 0, 0)
    assert isinstance(EventClock().mark(), float)


def test_a_cpu_build_has_no_accelerator():
    if torch.accelerator.current_accelerator() is None:
        assert device_memory.accelerator_type() is None and not device_memory.is_started()
