"""What is one kernel on CUDA is one while the imaginary GPU is there, and PyTorch is as before afterwards."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from brimful_inside.imaginary.operators.grouping import _split
from brimful_inside.imaginary.operators.libraries.whole_kernels import _FAST_PATH


def has_meta_kernel(name):
    return torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + name, "Meta")


def test_the_meta_devices_kernels_are_gone_when_the_card_is(enter):
    assert not has_meta_kernel("mish_backward")
    gpu = enter()
    assert has_meta_kernel("mish_backward")
    gpu.leave()
    assert not has_meta_kernel("mish_backward")


def test_a_script_with_meta_tensors_of_its_own_gets_gradients_of_mish_too(gpu):
    own = torch.empty(3, 4, device="meta", requires_grad=True)
    F.mish(own).sum().backward()
    assert own.grad.shape == (3, 4) and own.grad.device.type == "meta"


def operations(trace_file):
    rows = [json.loads(line) for line in trace_file.getvalue().splitlines()[1:]]
    return [row[3] for row in rows if row[0] == "malloc"]


def test_the_norm_of_all_gradients_is_one_operation_over_a_list_as_on_a_card(gpu, trace_file):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))).cuda()
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    start = len(operations(trace_file))
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    taken = operations(trace_file)[start:]
    assert sum(name.startswith("aten._foreach_norm") for name in taken) == 10, "a result for each of ten gradients"
    assert taken.count("aten.linalg_vector_norm.default") == 1, "and the norm of these"


def test_groups_are_of_the_card_and_of_the_host_by_themselves(gpu):
    tensors = [torch.zeros(2, device="cuda"), torch.zeros(2), torch.zeros(2, device="cuda", dtype=torch.half)]
    groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([tensors], with_indices=True)
    assert {(str(device), dtype): indices for (device, dtype), (_, indices) in groups.items()} == {
        ("cuda:0", torch.float32): [0],
        ("cpu", torch.float32): [1],
        ("cuda:0", torch.half): [2],
    }


class _TwoCards:
    """Tells the card of a tensor by its length."""

    @staticmethod
    def device_of(tensor):
        return torch.device("cuda", len(tensor) - 1)


def test_one_group_of_two_cards_becomes_one_for_each_with_what_belongs_together():
    first = [torch.empty(1), torch.empty(2), torch.empty(1)]
    second = [torch.empty(3), None, torch.empty(4)]
    groups = {}
    _split(_TwoCards, torch.float32, [first, second, []], [5, 6, 7], groups)
    (zero, places), (one, other) = groups[torch.device("cuda:0"), torch.float32], groups[torch.device("cuda:1"), torch.float32]
    assert places == [5, 7] and other == [6]
    assert zero[0] == [first[0], first[2]] and [len(t) for t in zero[1]] == [3, 4] and zero[2] == []
    assert one[0] == [first[1]] and one[1] == [None]


@pytest.mark.skipif(not has_meta_kernel("_native_multi_head_attention"), reason="this release of PyTorch has no shapes for it")
@pytest.mark.parametrize("weights", [(), (False,), (True, True), (True, False)])
def test_the_fast_path_has_the_shapes_that_later_releases_give_it(weights):
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).to("meta"), torch.empty(3, 5, 8, device="meta")
    given = (
        x,
        x,
        x,
        8,
        2,
        layer.in_proj_weight,
        layer.in_proj_bias,
        layer.out_proj.weight,
        layer.out_proj.bias,
        None,
        *weights,
    )
    with torch.no_grad():
        theirs = torch._native_multi_head_attention(*given)
        ours = _FAST_PATH["_native_multi_head_attention"](None, None, given, {})
    assert [t.shape for t in ours] == [t.shape for t in theirs]


def test_a_transformers_layer_evaluates_by_the_fast_path(gpu):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).cuda().eval()
    with torch.no_grad():
        assert layer(torch.zeros(3, 5, 16, device="cuda")).shape == (3, 5, 16)
