"""CUDA graphs: a captured step counts when it is replayed, and what came before the capture was its warm-up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from brimful_inside.probe import context as context_module
from brimful_inside.probe.hooks.optimizer_steps import CapturedSteps, Steps, patch_graphs
from brimful_inside.probe.process.early_stop import EarlyStop
from brimful_inside.probe.timing import HostClock, StepTimes
from brimful_inside.wire import TrialConfig


class Graph:
    """What a graph is to the probe: an object."""


@pytest.fixture
def watched():
    trial: list = []
    steps = Steps(lambda: trial.append("begins"), lambda n: trial.append(n), lambda: None)
    captures = CapturedSteps(steps, lambda: trial.append("captured"), lambda: trial.append("replayed"))
    hooks = [
        register_optimizer_step_pre_hook(lambda o, a, k: steps.before(o, a, k, sys._getframe(1))),
        register_optimizer_step_post_hook(lambda o, a, k: steps.after(o)),
    ]
    yield steps, captures, trial
    for hook in hooks:
        hook.remove()


def optimizer() -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return torch.optim.SGD([parameter], 0.1)


def test_a_captured_step_is_made_at_each_replay_and_not_at_the_capture(watched):
    steps, captures, trial = watched
    one, graph = optimizer(), Graph()
    one.step()
    captures.capture_begin(graph)
    one.step()
    captures.capture_end(graph)
    assert steps.count == 1 and trial == ["begins", 1, "begins", "captured"]
    captures.replay(graph)
    captures.replay(graph)
    assert steps.count == 3 and trial[4:] == ["replayed", "begins", 2, "replayed", "begins", 3]


def test_a_graph_without_a_step_changes_nothing(watched):
    steps, captures, trial = watched
    graph = Graph()
    captures.capture_begin(graph)
    captures.capture_end(graph)
    captures.replay(graph)
    optimizer().step()
    assert steps.count == 1 and trial == ["begins", 1]


def test_of_two_captured_optimizers_each_is_counted_by_itself(watched):
    steps, captures, _ = watched
    generator, critic, graph = optimizer(), optimizer(), Graph()
    captures.capture_begin(graph)
    critic.step()
    critic.step()
    generator.step()
    captures.capture_end(graph)
    captures.replay(graph)
    assert [seen.steps for seen in steps.read()] == [2, 1]


def test_a_trial_measures_its_steps_after_the_capture():
    ending = EarlyStop(TrialConfig(folder="", device="cpu", steps=2, warmup_steps=1))
    for number in (1, 2, 3):
        ending.stepped(number, number, True)
    assert ending.measured
    ending.restart(3)
    for number in (4, 5):
        ending.stepped(number, number, True)
    assert not ending.measured and not ending.stops_training(2)
    ending.stepped(6, 6, True)
    assert ending.measured and ending.stops_training(3)


def test_times_of_the_warm_up_are_not_kept():
    times = StepTimes(HostClock(), 1, 2)
    times.begin()
    assert [times.end_step(number) for number in (1, 2, 3)] == [False, True, True]
    times.restart(4)
    assert [times.end_step(number) for number in (4, 5, 6, 7)] == [False, True, True, False]
    assert len(times.read(wait=True)) == 2


def test_steps_count_again_after_a_capture_that_failed(watched, monkeypatch):
    steps, captures, _ = watched

    class Broken:
        def capture_begin(self): ...
        def capture_end(self):
            raise RuntimeError("operation not permitted when stream is capturing")

        def replay(self): ...

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Broken)
    context = SimpleNamespace(probe=SimpleNamespace(captured=captures))
    monkeypatch.setattr(context_module, "_current", context)
    patch_graphs()
    one, graph = optimizer(), Broken()
    graph.capture_begin()
    one.step()
    with pytest.raises(RuntimeError, match="not permitted"):
        graph.capture_end()
    assert steps.count == 0
    one.step()
    assert steps.count == 1
