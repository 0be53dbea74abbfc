"""Shapes computed directly are those of PyTorch's own meta kernels, strides and dtypes included."""

import pytest
import torch

from brimful_inside.imaginary.operators.meta_kernels import handlers, is_remembered
from brimful_inside.imaginary.state.tensors import keeps_order

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
    assert keeps_order(given) is (given * 2).is_contiguous() is keeps


@pytest.mark.parametrize("layout", ["transposed", "a third of a product", "one head"])
def test_flash_attention_has_the_shapes_of_pytorchs_own(layout):
    query = LAYOUTS[layout]()
    given = (query, query, query, 0.0, True)
    func = aten._scaled_dot_product_flash_attention.default
    ours, theirs = handlers()[func](None, func, given, {"scale": 1.0}), func(*given, scale=1.0)
    assert [shown(o) if isinstance(o, torch.Tensor) else o for o in ours] == [
        shown(t) if isinstance(t, torch.Tensor) else t for t in theirs
    ]
    out, sums, *_, seed, offset, _ = ours
    back = aten._scaled_dot_product_flash_attention_backward.default
    passed = (out, query, query, query, out, sums, None, None, 8, 8, 0.0, True, seed, offset)
    assert shown(handlers()[back](None, back, passed, {})) == shown(back(*passed))


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


# --- products by groups ---

GROUPED = hasattr(aten, "_grouped_mm") and torch.__version__ >= "2.9"
by_groups = pytest.mark.skipif(not GROUPED, reason="torch has no products by groups for all floats")
OFFSETS = torch.tensor([2, 8], dtype=torch.int32)
GROUPS = [((8, 16), (2, 16, 24)), ((2, 8, 16), (16, 8)), ((16, 8), (8, 24))]


@by_groups
@pytest.mark.parametrize("shapes", [*GROUPS, ((2, 8, 16), (2, 16, 24))])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_product_by_groups_has_the_shape_and_dtype_of_the_hosts(gpu, shapes, dtype):
    def product(device):
        left, right = (torch.zeros(shape, device=device, dtype=dtype) for shape in shapes)
        offsets = None if (len(shapes[0]), len(shapes[1])) == (3, 3) else OFFSETS.to(device)
        return torch._grouped_mm(left, right, offsets)

    assert described(product("cuda")) == described(product("cpu"))


@by_groups
def test_rows_of_a_product_by_groups_begin_at_16_bytes(gpu):
    left, right = (torch.zeros(shape, device="cuda") for shape in ((8, 16), (2, 10, 16)))
    out = torch._grouped_mm(left, right.transpose(1, 2), OFFSETS.cuda())
    assert out.shape == (8, 10) and out.stride() == (12, 1)


@by_groups
@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (torch.zeros(8, 16).double(), torch.zeros(2, 16, 24).double(), "Float32, BFloat16"),
        (torch.zeros(8, 16), torch.zeros(2, 12, 24), "contraction dimension"),
        (torch.zeros(8, 6), torch.zeros(2, 6, 24), "16 bytes"),
    ],
)
def test_what_no_card_multiplies_by_groups_is_refused(gpu, left, right, words):
    with pytest.raises(RuntimeError, match=words):
        torch._grouped_mm(left.cuda(), right.cuda(), OFFSETS.cuda())


@by_groups
@pytest.mark.parametrize(
    ("capability", "dtype", "takes"),
    [
        ((8, 0), torch.bfloat16, True),
        ((9, 0), torch.bfloat16, False),
        ((9, 0), torch.float32, True),
    ],
)
def test_products_by_groups_take_cublas_where_they_are_not_one_kernel(
    enter, capability, dtype, takes
):
    enter(capability=capability)
    left, right = (
        torch.zeros(shape, device="cuda", dtype=dtype) for shape in ((8, 16), (2, 16, 24))
    )
    before = torch.cuda.memory_allocated()
    out = torch._grouped_mm(left, right, OFFSETS.cuda())
    assert (torch.cuda.memory_allocated() - before > out.nbytes + (1 << 20)) is takes


CONFIGURATIONS = {
    "Mixtral": {"num_local_experts": 4},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "DeepseekV2": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 32,
        "q_lora_rank": None,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
    },
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "eos_token_id": 1},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
def test_mixtures_of_experts_train_in_each_precision(enter, name, capability):
    transformers = pytest.importorskip("transformers")
    enter(capability=capability)
    config = getattr(transformers, name + "Config")(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
        **CONFIGURATIONS[name],
    )
    model = transformers.AutoModelForCausalLM.from_config(config).cuda()
    tokens = torch.zeros(2, 8, dtype=torch.long, device="cuda")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        experts = [weight for part, weight in model.named_parameters() if ".experts" in part]
        assert experts and all(weight.grad.dtype == torch.float32 for weight in experts)


# --- what is remembered ---


def described(out):
    tensors = out if isinstance(out, (list, tuple)) else (out,)
    return [(tuple(t.shape), t.stride(), t.dtype, t.untyped_storage().nbytes()) for t in tensors]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x @ x.t(),
        lambda x: x**2,
        lambda x: x.long() ** 2.0,
        lambda x: x.long() ** 2,
        lambda x: torch.minimum(x, x[:1]),
        lambda x: x.t().cumsum(0),
        lambda x: x.sort(1),
        lambda x: x.expand(3, 4, 5).any(2),
        lambda x: torch.cat([x, x], 1),
    ],
)
def test_the_second_call_gives_what_the_first_did_in_a_storage_of_its_own(gpu, work):
    x = torch.zeros(4, 5, device="cuda")
    first, second = work(x), work(x)
    gpu.remembered._known.clear()
    assert described(first) == described(second) == described(work(x))


def test_an_argument_of_another_type_or_layout_or_default_dtype_is_another_call(gpu):
    x = torch.zeros(4, 5, device="cuda", dtype=torch.long)
    assert [(x**2).dtype, (x**2.0).dtype] == [torch.long, torch.float32]
    torch.set_default_dtype(torch.float64)
    try:
        assert (x**2.0).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    y = torch.zeros(4, 5, device="cuda")
    assert [torch.minimum(each, each).stride() for each in (y, y.t())] == [(5, 1), (1, 5)]


def test_arithmetic_of_whole_numbers_is_remembered_with_its_types(gpu):
    x, ones = torch.zeros(4, 5, device="cuda", dtype=torch.long), torch.ones((), device="cuda")
    for work in (lambda: x + 3, lambda: x + x, lambda: x * 2, lambda: x - x.int(), lambda: 3 + x):
        first, known = work(), len(gpu.remembered._known)
        assert (
            known and described(work()) == described(first) and len(gpu.remembered._known) == known
        )
    assert any(key[0] is aten.add.Tensor for key in gpu.remembered._known), (
        "which is also what the engine adds gradients by"
    )
    assert [(x + 3.0).dtype, (x + ones).dtype, (x + x.int()).dtype] == [
        torch.float32,
        torch.float32,
        torch.long,
    ]
    with pytest.raises(RuntimeError):
        x + torch.zeros(7, device="cuda", dtype=torch.long)


def test_a_number_can_come_before_the_tensor(gpu):
    card = torch.ones(3, device="cuda")
    assert shown(torch.add(2.0, card)) == shown(torch.mul(2, card)) == shown(card)


def test_the_table_has_an_end(gpu, monkeypatch):
    monkeypatch.setattr("brimful_inside.imaginary.operators.meta_kernels.MOST", 8)
    for size in range(1, 40):
        torch.zeros(size, device="cuda") ** 2
    assert len(gpu.remembered._known) <= 8


@pytest.mark.parametrize(
    "func",
    [aten.view.default, aten.add_.Tensor, aten.nonzero.default, aten._local_scalar_dense.default],
)
def test_views_changes_and_what_depends_on_values_is_not_remembered(func):
    assert not is_remembered(func) and is_remembered(aten.mm.default)
