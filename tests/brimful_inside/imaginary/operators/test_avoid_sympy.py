"""What PyTorch's shape functions ask of sizes is answered as PyTorch answers it, without sympy."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental import symbolic_shapes as real

from brimful_inside.imaginary.operators import avoid_sympy

STAND_IN = avoid_sympy._Shapes("torch.fx.experimental.symbolic_shapes")


def of_both(name: str) -> tuple:
    if not hasattr(real, name):
        pytest.skip(f"this PyTorch has no {name}")
    return getattr(STAND_IN, name), getattr(real, name)


VALUES = {
    avoid_sympy._is_truth: [True, False],
    avoid_sympy._is_number: [-5, 0, 1, 7, 1 << 40],
    avoid_sympy._is_shape: [3, (2, 3), [4], torch.empty(2, 3, device="meta")],
}


@pytest.mark.parametrize("name", sorted(set(avoid_sympy._ANSWERS) - {"sym_eq"}))
def test_what_is_plain_is_answered_as_pytorch_answers_it(name):
    ours, theirs = of_both(name)
    for value in VALUES[avoid_sympy._ANSWERS[name][1]]:
        assert ours(value) == theirs(value) and type(ours(value)) is type(theirs(value)), value


@pytest.mark.parametrize("name", ["sym_and", "sym_or"])
@given(values=st.lists(st.booleans(), min_size=1, max_size=4))
def test_truths_are_joined_alike(name, values):
    ours, theirs = of_both(name)
    assert ours(*values) == theirs(*values)


@given(
    first=st.lists(st.integers(0, 3), max_size=3),
    second=st.lists(st.integers(0, 3), max_size=3),
    kind=st.sampled_from([list, tuple]),
)
def test_shapes_are_equal_alike(first, second, kind):
    ours, theirs = of_both("sym_eq")
    assert ours(first, kind(second)) == theirs(first, kind(second))


def test_anything_that_is_not_plain_goes_to_pytorch():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    size = ShapeEnv().create_unbacked_symint()
    assert STAND_IN.is_nested_int(size) is False and STAND_IN.guard_or_false(size == 3) is False
    assert STAND_IN.guard_or_true(size == 3) is True
    assert len(STAND_IN.free_unbacked_symbols((2, size))) == 1
    with pytest.raises(AssertionError):
        STAND_IN.guard_int("three")


SCRIPT = """
    import sys
    import torch
    from brimful_inside import imaginary
    from brimful_inside.wire import Card

    before = torch._prims_common.elementwise_dtypes
    gpu = imaginary.enter(Card("x", 40 << 30, 0, [8, 0], 108))
    image = torch.randn(2, 8, 6, 6, device="cuda", requires_grad=True)
    ones = torch.cat([image[0], torch.ones(3, 6, 6, device="cuda")]).clamp(0, 1).pow(2)
    torch.eye(6, device="cuda") + ones.masked_fill(ones == 1, 0)
    larger = torch.nn.functional.interpolate(image, scale_factor=2.0, mode="bilinear")
    torch.nn.GroupNorm(2, 8).to("cuda")(larger).sum().backward(retain_graph=True)
    nn = torch.nn
    layers = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(10)
    model = torch.nn.Sequential(*layers).to("cuda")
    model(image)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.autocast("cuda"):
        loss = torch.nn.functional.cross_entropy(model(image), torch.zeros(2, device="cuda").long())
    (loss + torch.nn.functional.mse_loss(larger, larger.detach())).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    try:
        torch.ones(2, device="cuda") + torch.ones(3, device="cuda")
        raise SystemExit("shapes that do not go together went together")
    except RuntimeError as error:
        assert "broadcast" in str(error), error
    print("sympy" in sys.modules)
    gpu.leave()
    assert torch._prims_common.elementwise_dtypes is before
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    import sympy
    assert torch.fx.experimental.symbolic_shapes is sys.modules[ShapeEnv.__module__]
    print(torch.empty(3, device="meta").add(torch.empty(2, 1, device="meta")).shape)
"""


def test_usual_operations_run_without_sympy_and_all_is_as_before_afterwards(printed):
    assert printed(SCRIPT) == ["False", "torch.Size([2, 3])"]
