import json
import sys

import pytest
import torch

from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.probe.hooks.exceptions import (
    Failures,
    is_users,
    kind_of,
    where_in_users_code,
)
from brimful_inside.probe.hooks.forward_backward import trained_in, trains_now


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out_of_device_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_host_memory"),
        (MemoryError(), "out_of_host_memory"),
        (Unsupported("torch.foo", "it is not there"), "unsupported"),
        (ValueError("CUDA out of memory, said the script"), "crashed"),
        (KeyError("x"), "crashed"),
    ],
)
def test_an_exception_is_told_by_its_kind(error, kind):
    assert kind_of(error) == kind


def test_the_users_frame_is_the_innermost_that_is_neither_a_packages_nor_pythons_nor_ours():
    assert is_users("/home/me/train.py") and is_users("<stdin>")
    assert (
        not is_users(torch.__file__) and not is_users(json.__file__) and not is_users(sys.modules[Failures.__module__].__file__)
    )
    assert not is_users("<frozen importlib._bootstrap>")

    def fails():
        json.loads("{")

    try:
        fails()
    except ValueError as error:
        assert where_in_users_code(error.__traceback__).endswith("in fails")


def test_memory_that_ran_out_is_told_as_caught_once_the_script_continues():
    trial = []
    failures = Failures(trial.append, lambda: ("train", 3, False))
    failures.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert trial == []
    failures.script_continues()
    failures.script_continues()
    (failure,) = trial
    assert failure.caught and failure.kind == "out_of_device_memory" and failure.phase == "train" and failure.step == 3


def test_memory_that_ran_out_and_left_the_script_is_told_once_and_not_as_caught():
    trial = []
    failures = Failures(trial.append, lambda: ("train", 3, True))
    error = torch.OutOfMemoryError("CUDA out of memory")
    failures.out_of_memory(error)
    failures.left_the_script(error)
    failures.left_the_script(error)
    failures.script_continues()
    (failure,) = trial
    assert not failure.caught and failure.after_measured and failure.type == "torch.OutOfMemoryError"


def test_the_phase_is_that_of_the_place_where_memory_ran_out():
    trial, phases = [], iter(["train", "eval", "eval"])
    failures = Failures(trial.append, lambda: (next(phases), 0, False))
    failures.out_of_memory(None, "CUDA out of memory")
    for error in (torch.OutOfMemoryError("CUDA out of memory"), ValueError("another")):
        failures.left_the_script(error)
    assert [failure.phase for failure in trial] == ["train", "eval"]


class Looks(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self):
        return trains_now() if self.inner is None else self.inner()


def test_the_stack_tells_a_training_forward_by_gradients_and_the_outermost_modules_mode():
    assert not trains_now()
    assert Looks()() and not Looks().eval()()
    assert Looks(Looks().eval())()  # a frozen part of what is trained
    evaluated = Looks(Looks()).eval()
    evaluated.inner.train()  # dropout that goes on in an evaluation
    assert not evaluated()
    with torch.no_grad():
        assert not Looks()()


def test_an_interrupt_is_no_failure():
    trial = []
    failures = Failures(trial.append, lambda: ("train", 0, False))
    for error in (KeyboardInterrupt(), SystemExit(3)):
        failures.left_the_script(error)
    assert trial == []


class Fails(torch.nn.Module):
    def forward(self):
        raise MemoryError


@pytest.mark.parametrize("mode", [True, False])
def test_a_traceback_tells_whether_the_forward_pass_it_left_was_of_training(mode):
    with pytest.raises(MemoryError) as raised:
        Looks(Fails()).train(mode)()
    assert trained_in(raised.value.__traceback__) is mode


def test_a_traceback_without_a_module_tells_of_no_training():
    with pytest.raises(MemoryError) as raised:
        raise MemoryError
    assert not trained_in(raised.value.__traceback__)
