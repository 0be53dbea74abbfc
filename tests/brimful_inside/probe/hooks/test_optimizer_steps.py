"""Each update is counted once, whatever wraps the optimizer; one in a CUDA graph when it is
replayed.
"""

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from brimful_inside.probe import context as context_module
from brimful_inside.probe.hooks.optimizer_steps import CapturedSteps, Steps, patch_graphs


@pytest.fixture
def steps():
    made = []
    steps = Steps(lambda: None, made.append, lambda: None, lambda record: None)
    steps.marks = made
    with (
        register_optimizer_step_pre_hook(lambda o, a, k: steps.before(o, a, k, sys._getframe(1))),
        register_optimizer_step_post_hook(lambda o, a, k: steps.after(o)),
    ):
        yield steps


def parameter(size=3):
    p = torch.nn.Parameter(torch.ones(size))
    p.grad = torch.ones(size)
    return p


def test_a_plain_optimizer_is_counted_with_its_rates(steps):
    optimizer = torch.optim.AdamW(
        [{"params": [parameter()], "lr": 0.1}, {"params": [parameter(5)], "lr": 0.2}]
    )
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step()
    (seen,) = steps.read()
    assert (seen.name, seen.steps, seen.parameters, seen.uses_closure) == ("AdamW", 2, 8, False)
    assert seen.first_learning_rates == [0.1, 0.2] and seen.learning_rates == [0.05, 0.2]
    assert steps.marks == [1, 2]


class Wrapper(torch.optim.Optimizer):
    """As ZeroRedundancyOptimizer does: an Optimizer whose step calls another one's."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure=None):
        return self.inner.step(closure)


class TwoSteps(Wrapper):
    """As sharpness-aware optimizers do: two inner steps make one update."""

    def step(self, closure=None):
        self.inner.step()
        return self.inner.step()


class Derived(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Wrapper, "SGD"),
        (TwoSteps, "SGD"),
        (lambda inner: Derived(inner.param_groups), "Derived"),
    ],
)
def test_a_wrapper_and_what_it_wraps_or_its_base_class_are_one(steps, make, name):
    make(torch.optim.SGD([parameter()], lr=0.1)).step()
    assert [(seen.name, seen.steps) for seen in steps.read()] == [(name, 1)]


def test_the_first_of_several_optimizers_sets_the_pace(steps):
    first, second = torch.optim.SGD([parameter()], lr=0.1), torch.optim.Adam([parameter()], lr=0.2)
    for _ in range(2):
        for optimizer in (first, second, second):
            optimizer.step()
    assert steps.count == 2 and steps.marks == [1, 2]
    assert [(seen.name, seen.steps) for seen in steps.read()] == [("SGD", 2), ("Adam", 4)]


def test_a_closure_that_evaluates_often_is_one_step(steps):
    weight, calls = torch.nn.Parameter(torch.ones(2)), []
    optimizer = torch.optim.LBFGS([weight], lr=0.1, max_iter=5)

    def closure():
        optimizer.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        calls.append(steps.stepping)
        return loss

    optimizer.step(closure)
    (seen,) = steps.read()
    assert seen.steps == 1 and seen.uses_closure and not steps.stepping
    assert len(calls) > 1 and all(calls)


def test_a_step_that_raised_does_not_swallow_the_next_one(steps):
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        Fails([parameter()], lr=0.1).step()
    torch.optim.Adam([parameter()]).step()
    assert [(seen.name, seen.steps) for seen in steps.read()] == [("Fails", 0), ("Adam", 1)]
    assert steps.count == 1


@pytest.mark.parametrize("relative", [True, False])
def test_an_optimizer_that_takes_relative_steps_is_seen_to_ignore_its_rate(steps, relative):
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    optimizer.param_groups[0]["relative_step"] = relative
    optimizer.step()
    assert steps.read()[0].relative_steps is relative


def test_an_optimizer_that_is_thrown_away_is_not_kept_alive(steps):
    thrown_away = optimizer()
    thrown_away.step()
    gone = weakref.ref(thrown_away)
    del thrown_away
    gc.collect()
    assert gone() is None and steps.read()[0].steps == 1


def test_it_is_known_which_modules_are_trained(steps):
    student, teacher = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert steps.trains(teacher)  # nothing is known before the first step
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    optimizer.step()
    assert steps.trains(student) and not steps.trains(teacher) and not steps.trains(torch.nn.ReLU())


def test_what_a_scheduler_took_over_is_reported(steps):
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10)
    optimizer.step()
    scheduler.step()
    (seen,) = steps.read()
    assert seen.max_learning_rates == [0.5] and seen.initial_learning_rates == pytest.approx(
        seen.first_learning_rates
    )


def test_skipped_steps_are_attempts(steps):
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    steps.skipped(optimizer)
    assert steps.count == 0 and steps.attempts == 1
    optimizer.step()
    assert steps.count == 1 and steps.attempts == 2


class Graph:
    """What a graph is to the probe: an object."""


@pytest.fixture
def captures(steps):
    return CapturedSteps(
        steps, lambda: steps.marks.append("captured"), lambda: steps.marks.append("replayed")
    )


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter()], 0.1)


def test_a_captured_step_is_made_at_each_replay_and_not_at_the_capture(steps, captures):
    one, graph = optimizer(), Graph()
    one.step()
    captures.capture_begin(graph)
    one.step()
    captures.capture_end(graph)
    assert steps.marks == [1, "captured"]
    for _ in range(2):
        captures.replay(graph)
    assert steps.count == 3 and steps.marks[2:] == ["replayed", 2, "replayed", 3]


def test_a_graph_without_a_step_changes_nothing_and_of_two_captured_optimizers_each_is_counted(
    steps, captures
):
    for of_critic, of_generator in ((0, 0), (2, 1)):
        graph = Graph()
        captures.capture_begin(graph)
        for one in [optimizer()] * of_critic + [optimizer()] * of_generator:
            one.step()
        captures.capture_end(graph)
        captures.replay(graph)
        assert [seen.steps for seen in steps.read()] == [2, 1][:of_critic]


def test_steps_count_again_after_a_capture_that_failed(steps, captures, monkeypatch):
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


BY_HAND = """
import sys, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(8, 8)
rests = sys.argv[1] == "an optimizer that rests"
optimizer = torch.optim.SGD(model.parameters(), 0.1) if rests else None
model.to(device)
for _ in range(int(sys.argv[2])):
    model.zero_grad()
    model(torch.ones(6, 8).to(device)).sum().backward()
    for weight in model.parameters():
        weight.data.add_(weight.grad, alpha=-0.1)
"""


@pytest.mark.parametrize("device", ["imaginary", "cpu"])
def test_weights_that_the_script_changes_itself_are_trained(run_trial, device):
    report = run_trial(BY_HAND, argv=("nothing", "100"), device=device).report
    (by_hand,) = report["optimizers"]
    assert by_hand["name"] == "no optimizer" and by_hand["steps"] >= 3
    assert "train" in report["phases"]
    assert set(report["samples_per_step"][1:]) == {6}, "the first step is known as one at its end"
    assert any("each backward pass counts as a step" in note for note in report["notes"])


@pytest.mark.parametrize("device", ["imaginary", "cpu"])
@pytest.mark.parametrize(("has", "passes"), [("an optimizer that rests", 100), ("nothing", 1)])
def test_passes_of_a_process_with_an_optimizer_and_a_single_pass_are_no_steps(
    run_trial, has, passes, device
):
    assert run_trial(BY_HAND, argv=(has, str(passes)), device=device).report["optimizers"] == []


TAUGHT = """
import torch
from torch import nn

teacher, student = nn.Sequential(nn.Linear(512, 1024)).cuda(), nn.Linear(512, 1024).cuda()
{made}
for step in range(9):
    x = torch.randn(8, 512, device="cuda")
    {taught}
    loss = (student(x) - goal).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
COPIES = "optimizer = torch.optim.SGD([p.clone().detach() for p in student.parameters()], 0.1)"


@pytest.mark.parametrize(
    ("made", "taught", "expected"),
    [
        ("", "goal = teacher(x)", {"Sequential": 4 * 513 * 1024}),
        ("", "with torch.no_grad(): goal = teacher(x)", {}),
        ("teacher.requires_grad_(False)", "goal = teacher(x)", {}),
        # it has an optimizer of its own, that steps more seldom
        ("other = torch.optim.SGD(teacher.parameters(), 0.1)", "goal = teacher(x)", {}),
        (COPIES, "goal = teacher(x)", {}),  # nobody knows which weights those are copies of
    ],
)
def test_gradients_of_weights_that_no_optimizer_holds_are_known(run_trial, made, taught, expected):
    made = f"optimizer = torch.optim.SGD(student.parameters(), 0.1)\n{made}"
    script = TAUGHT.format(made=made, taught=taught)
    report = run_trial(script, device="imaginary", trace=True).report
    assert report["unstepped"] == expected
