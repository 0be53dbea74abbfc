"""Shapes computed directly are those of PyTorch's own meta kernels, strides and dtypes included."""

from __future__ import annotations

import pytest
import torch

from brimful_inside.imaginary.operators.meta_kernels import handlers
from brimful_inside.imaginary.state.tensors import broadcast, in_its_order, keeps_order

aten = torch.ops.aten


def tensor(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


LAST = torch.channels_last
PLAIN, IMAGE = tensor(3, 5), tensor(2, 4, 9, 8)
IMAGE_LAST = IMAGE.to(memory_format=LAST)
CALLS = {  # the first of each is answered without PyTorch
    "cat": [
        ([PLAIN, tensor(2, 5)],),
        ([PLAIN, tensor(3, 1)], -1),
        ([PLAIN.t(), tensor(5, 2)], 1),
        ([tensor(1, 1, 6).expand(4, 1, 6), tensor(4, 6, 3).transpose(1, 2)], 1),
        ([IMAGE_LAST] * 2, 0),
        ([IMAGE_LAST] * 2, 1),
        ([IMAGE_LAST, IMAGE], 1),
    ],
    **{key: [(PLAIN,), (PLAIN.t(),)] for key in ("leaky_relu_", "elu_", "hardtanh_")},
    **{key: [(PLAIN, 0.0)] for key in ("clamp_", "clamp_min_", "clamp_max_")},
}


def shown(out):
    outs = out if isinstance(out, (tuple, list)) else [out]
    return [(tuple(t.shape), t.dtype, t.stride()) for t in outs]


@pytest.mark.parametrize("name", CALLS)
def test_the_answer_is_that_of_pytorch(name):
    func = getattr(aten, name).default
    handler = handlers()[func]
    assert shown(handler(None, None, CALLS[name][0], {})) == shown(func(*CALLS[name][0]))
    for args in CALLS[name]:
        assert shown(handler(None, func, args, {})) == shown(func(*args)), args


LAYOUTS = {
    "transposed": lambda: tensor(2, 8, 4, 16).transpose(1, 2),
    "a third of a product": lambda: (
        tensor(2, 8, 3 * 64).split(64, 2)[1].view(2, 8, 4, 16).transpose(1, 2)
    ),
    "channels last": lambda: tensor(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one head": lambda: tensor(2, 8, 1, 16).transpose(1, 2),
    "contiguous": lambda: tensor(2, 3, 4),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_in_the_order_of_another_is_laid_out_as_pytorch_lays_it_out(name):
    given = LAYOUTS[name]()
    assert shown(in_its_order(given)) == shown(torch.empty_like(given))


@pytest.mark.parametrize(
    ("given", "keeps"),
    [
        (tensor(3, 5), True),
        (tensor(3, 1).expand(3, 5), True),
        (tensor(2, 4, 1, 1).expand(2, 4, 3, 3), True),
        (tensor(3, 6)[:, :5], True),
        (tensor().expand(3, 5), True),
        (tensor(3, 5).t(), False),
        (IMAGE_LAST, False),
    ],
)
def test_what_keeps_its_order_gives_contiguous_results(given, keeps):
    assert keeps_order(given) is keeps
    assert (given * 2).is_contiguous() is keeps


@pytest.mark.parametrize("layout", ["transposed", "a third of a product", "one head"])
def test_flash_attention_has_the_shapes_of_pytorchs_own(layout):
    query = LAYOUTS[layout]()
    given = (query, query, query, 0.0, True)
    func = aten._scaled_dot_product_flash_attention.default
    ours, theirs = handlers()[func](None, func, given, {"scale": 1.0}), func(*given, scale=1.0)
    assert [shown(o) if isinstance(o, torch.Tensor) else o for o in ours] == [
        shown(t) if isinstance(t, torch.Tensor) else t for t in theirs
    ]
    back = aten._scaled_dot_product_flash_attention_backward.default
    passed = (
        ours[0],
        query,
        query,
        query,
        ours[0],
        ours[1],
        None,
        None,
        8,
        8,
        0.0,
        True,
        ours[6],
        ours[7],
    )
    assert shown(handlers()[back](None, back, passed, {})) == shown(back(*passed))


def test_shapes_that_do_not_go_together_are_refused_in_pytorchs_words():
    assert broadcast((3, 1), (5,), ()) == torch.broadcast_shapes((3, 1), (5,), ())
    with pytest.raises(RuntimeError, match="broadcast"):
        broadcast((3,), (4,))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: torch.nn.functional.max_pool2d(x, 2, 2, padding=2),
            "pad should be at most half",
        ),
        (lambda x: x.flatten().tril(), "at least 2 dimensions"),
    ],
)
def test_what_the_host_refuses_the_card_refuses(gpu, call, words):
    for device in ("cpu", "cuda"):
        with pytest.raises(RuntimeError, match=words):
            call(torch.zeros(1, 1, 9, 9, device=device))


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True), (False, False)])
def test_the_gradient_of_an_activation_is_laid_out_as_on_the_host(gpu, transposed):
    def laid_out(device, call):
        pair = [
            torch.zeros(4, 6, device=device).t() if tensor else torch.zeros(6, 4, device=device)
            for tensor in transposed
        ]
        return call(*pair).stride()

    for call in (
        lambda grad, x: aten.threshold_backward(grad, x, 0),
        aten.gelu_backward,
        aten.silu_backward,
    ):
        assert laid_out("cuda", call) == laid_out("cpu", call)
