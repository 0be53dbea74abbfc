"""torch._dynamo's stand-in: settings without the package, and one package however it is imported;
kernels of compilers."""

import sys
import types

import pytest
import torch

from brimful_inside.imaginary.cuda_api.compiler import TRITON_LAUNCHERS, pass_over

BEGIN = """
    import importlib.util
    import sys
    import torch
    from brimful_inside import imaginary
    from brimful_inside.wire import Card

    gpu = imaginary.enter(Card("x", 40 << 30, 0, [8, 0], 108))
"""
SETTINGS = {
    "by attribute": "import torch._dynamo; config = torch._dynamo.config",
    "by import": "import torch._dynamo.config; config = torch._dynamo.config",
    "from the package": "from torch._dynamo import config",
}


@pytest.mark.parametrize("how", SETTINGS)
def test_settings_that_a_script_makes_are_those_of_the_real_package_when_it_comes(printed, how):
    assert printed(
        BEGIN
        + f"""
    {SETTINGS[how]}
    config.suppress_errors = True
    print("torch._dynamo.convert_frame" in sys.modules, "sympy" in sys.modules)
    torch._dynamo.list_backends
    from torch._dynamo import convert_frame
    print(convert_frame.config is config is torch._dynamo.config)
    print(torch._dynamo.config.suppress_errors)
    """
    ) == ["False False", "True", "True"]


def test_a_submodule_that_is_imported_is_the_one_that_the_package_uses(printed):
    assert printed(
        BEGIN
        + """
    import torch._dynamo.exc
    from torch._dynamo import convert_frame
    import torch._dynamo.utils as utils
    print(convert_frame.Unsupported is torch._dynamo.exc.Unsupported)
    print(convert_frame.counters is utils.counters)
    print(torch._dynamo.exc.__spec__.loader is not None)
    print(sys.modules["torch._dynamo"].__spec__.origin is not None)
    """
    ) == ["True", "True", "True", "True"]


def test_a_submodule_that_is_not_there_is_not_found_and_the_stand_ins_can_be_looked_for(printed):
    assert printed(
        BEGIN
        + """
    print(importlib.util.find_spec("torch._dynamo") is not None)
    print(importlib.util.find_spec("torch.fx.experimental.symbolic_shapes") is not None)
    try:
        import torch._dynamo.nothing_of_that_name
    except ModuleNotFoundError as error:
        print(error.name)
    """
    ) == ["True", "True", "torch._dynamo.nothing_of_that_name"]


def test_after_leaving_the_real_package_is_imported(printed):
    assert printed(
        BEGIN
        + """
    before = len(sys.meta_path)
    gpu.leave()
    import torch._dynamo
    print(len(sys.meta_path) - before, type(sys.modules["torch._dynamo"]).__name__)
    print("torch._dynamo.exc" in sys.modules)
    """
    ) == ["-2 module", "True"]


def launcher(name: str, monkeypatch) -> types.ModuleType:
    """A module as Triton's own is seen from outside: a class whose `run` would need a driver."""

    def run(self, *args, grid, warmup, **kwargs):
        raise RuntimeError("0 active drivers")

    module, kind = types.ModuleType(name), TRITON_LAUNCHERS[name]
    setattr(module, kind, type(kind, (), {"run": run, "__getitem__": lambda self, grid: self.run}))
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_launch_takes_no_memory_and_is_counted(gpu, monkeypatch):
    module = launcher("triton.runtime.jit", monkeypatch)
    pass_over(gpu, module)
    data = torch.randn(64, device="cuda")
    before = torch.cuda.memory_allocated()
    assert (
        module.JITFunction()[(1,)](data, torch.empty_like(data), 64, grid=(1,), warmup=False)
        is None
    )
    assert torch.cuda.memory_allocated() == before and gpu.approximations["Triton kernel"] == 1


def test_after_the_card_has_gone_kernels_are_launched_as_before(gpu, monkeypatch):
    first, late = (
        launcher("triton.runtime.jit", monkeypatch),
        launcher("triton.runtime.autotuner", monkeypatch),
    )
    real = first.JITFunction.run
    pass_over(gpu, first)
    assert first.JITFunction.run is not real
    gpu.leave()
    pass_over(gpu, late)
    assert (
        first.JITFunction.run is real
        and late.Autotuner.run.__name__ == "run"
        and not gpu.approximations
    )


def test_a_compiled_function_counts_when_it_is_called_and_a_model_when_it_is_compiled(gpu):
    """DeepSpeed decorates functions of an optimizer that few scripts use."""

    @torch.compile
    def first(x):
        return x + 1

    @torch.compile(dynamic=False)
    def second(x):
        return x + 2

    assert not gpu.approximations
    assert [first(1), first(1), second(1)] == [2, 2, 3] and first.__name__ == "first"
    assert gpu.approximations == {"torch.compile": 2}
    model = torch.nn.Linear(2, 2)
    assert torch.compile(model) is model and gpu.approximations == {"torch.compile": 3}


@pytest.mark.parametrize(
    "options", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}]
)
def test_code_that_is_compiled_to_cuda_graphs_is_told_apart(gpu, options):
    network = torch.nn.Linear(2, 2, device="cuda")
    torch.compile(network, **options)
    network.compile(**options)
    decorated = torch.compile(**options)(lambda: None)
    torch.compile(network, mode="default", options={"max_autotune": True})
    decorated()
    assert gpu.approximations == {"torch.compile with CUDA graphs": 3, "torch.compile": 1}


def test_flex_attention_writes_no_scores(gpu):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shape = (2, 4, 1024, 64)
    query, key, value = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = torch.compile(flex_attention)(
        query, key, value, block_mask=mask, score_mod=lambda s, b, h, i, j: s + (i - j)
    )
    assert out.shape == shape and torch.cuda.max_memory_allocated() - before < 1024 * 1024 * 4 * 8
    out.sum().backward()
    assert query.grad.shape == key.grad.shape == shape
