"""Launches of Triton kernels are passed over while the imaginary GPU is there, and come back with the real ones."""

from __future__ import annotations

import sys
import types

import torch

from brimful_inside.imaginary.operators.libraries.triton_kernels import CLASSES, pass_over


def launcher(name: str, monkeypatch) -> types.ModuleType:
    """A module as Triton's own is seen from outside: a class whose `run` would need a driver."""

    def run(self, *args, grid, warmup, **kwargs):
        raise RuntimeError("0 active drivers")

    module = types.ModuleType(name)
    setattr(module, CLASSES[name], type(CLASSES[name], (), {"run": run, "__getitem__": lambda self, grid: self.run}))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_launch_takes_no_memory_and_is_counted(gpu, monkeypatch):
    module = launcher("triton.runtime.jit", monkeypatch)
    pass_over(gpu, module)
    data = torch.randn(64, device="cuda")
    before = torch.cuda.memory_allocated()
    assert module.JITFunction()[(1,)](data, torch.empty_like(data), 64, grid=(1,), warmup=False) is None
    assert torch.cuda.memory_allocated() == before and gpu.approximations["Triton kernel"] == 1


def test_after_the_card_has_gone_kernels_are_launched_as_before(gpu, monkeypatch):
    first, late = launcher("triton.runtime.jit", monkeypatch), launcher("triton.runtime.autotuner", monkeypatch)
    real = first.JITFunction.run
    pass_over(gpu, first)
    assert first.JITFunction.run is not real
    gpu.leave()
    pass_over(gpu, late)
    assert first.JITFunction.run is real and late.Autotuner.run.__name__ == "run" and not gpu.approximations
