"""Kernels that a compiler would make: Triton's launches are passed over, flex_attention keeps what is known."""

from __future__ import annotations

import sys
import types

import torch

from brimful_inside.imaginary.cuda_api.compiler import TRITON_LAUNCHERS, pass_over


def launcher(name: str, monkeypatch) -> types.ModuleType:
    """A module as Triton's own is seen from outside: a class whose `run` would need a driver."""

    def run(self, *args, grid, warmup, **kwargs):
        raise RuntimeError("0 active drivers")

    module = types.ModuleType(name)
    setattr(
        module,
        TRITON_LAUNCHERS[name],
        type(TRITON_LAUNCHERS[name], (), {"run": run, "__getitem__": lambda self, grid: self.run}),
    )
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


def test_flex_attention_writes_no_scores(gpu):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shape = (2, 4, 1024, 64)
    query, key, value = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = torch.compile(flex_attention)(query, key, value, block_mask=mask, score_mod=lambda s, b, h, i, j: s + (i - j))
    assert out.shape == shape and torch.cuda.max_memory_allocated() - before < 1024 * 1024 * 4 * 8
    out.sum().backward()
    assert query.grad.shape == key.grad.shape == shape
