"""The card's clock: what ran in a step, what it costs, and events that read the time."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from brimful_inside.imaginary.operators import flops
from brimful_inside.imaginary.state import clock as module
from brimful_inside.simulator.roofline import BY_AUTOGRAD, BY_OPTIMIZER, Kernel
from brimful_inside.simulator.trace import decode
from brimful_inside.wire import Card
from tests.brimful_inside.imaginary.conftest import GIB, card, entered

NO_RATES = Card("no rates", 40 * GIB, GIB // 2, [8, 0], 108)


def ran(gpu, work) -> list[Kernel]:
    """What `work` runs on the card."""
    gpu.clock.step()
    gpu.clock.last_step()
    work()
    gpu.clock.step()
    return gpu.clock.last_step()


def short(kernels: list[Kernel]) -> list[str]:
    return [kernel.op.split(".")[1] for kernel in kernels]


def kinds(gpu, work) -> list[str]:
    return [kernel.kind for kernel in ran(gpu, work)]


def small_training():
    model = nn.Linear(8, 8).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    return model, optimizer, torch.randn(4, 8, device="cuda")


def test_a_product_is_two_operations_for_each_of_m_n_k_and_its_bytes_are_those_of_its_tensors(gpu):
    a, b = torch.randn(300, 500, device="cuda"), torch.randn(500, 700, device="cuda")
    flops, numbers = 2 * 300 * 500 * 700, 300 * 500 + 500 * 700 + 300 * 700
    assert ran(gpu, lambda: a @ b) == [
        Kernel("aten.mm.default", "fp32", flops, 4 * numbers, shape=(1, 300, 700, 500))
    ]


def test_tf32_is_a_class_of_its_own_and_the_scripts_choice(gpu):
    a = torch.randn(64, 64, device="cuda")
    images, weight = (
        torch.randn(2, 8, 16, 16, device="cuda"),
        torch.randn(8, 8, 3, 3, device="cuda"),
    )
    allowed = torch.backends.cuda.matmul.allow_tf32
    try:
        for choice, kind in ((True, "tf32"), (False, "fp32")):
            torch.backends.cuda.matmul.allow_tf32 = choice
            assert kinds(gpu, lambda: a @ a) == [kind]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    assert kinds(gpu, lambda: F.conv2d(images, weight))[0] == "tf32", "cuDNN allows it by default"


def test_a_card_before_ampere_has_no_tf32_and_no_bfloat16(enter):
    gpu = enter(capability=(7, 0))
    images, weight = (
        torch.randn(2, 8, 16, 16, device="cuda"),
        torch.randn(8, 8, 3, 3, device="cuda"),
    )
    assert kinds(gpu, lambda: F.conv2d(images, weight)) == ["fp32"]
    for dtype, kind in ((torch.float16, "fp16"), (torch.bfloat16, "fp32")):
        a = torch.randn(64, 64, device="cuda", dtype=dtype)
        assert kinds(gpu, lambda a=a: a @ a) == [kind]


def test_a_convolution_is_a_product_of_places_and_its_gradients_cost_as_much_each(gpu):
    conv = nn.Conv2d(16, 32, 3, padding=1, bias=False).to("cuda", memory_format=torch.channels_last)
    images = torch.randn(4, 16, 20, 20, device="cuda", requires_grad=True).to(
        memory_format=torch.channels_last
    )
    kernels = [k for k in ran(gpu, lambda: conv(images).sum().backward()) if "convolution" in k.op]
    assert [k.flops for k in kernels] == [2 * 4 * 20 * 20 * 32 * 16 * 9] * 3
    assert [k.shape for k in kernels] == [
        (1, 1600, 32, 144),
        (1, 1600, 144, 32),
        (1, 32, 144, 1600),
    ]


def test_torchs_own_flop_counter_agrees(gpu):
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.ConvTranspose2d(8, 6, 4), nn.Flatten()),
        nn.Linear(6 * 10 * 10, 7),
    )
    images = torch.randn(5, 3, 16, 16)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    on_card, given = model.to("cuda"), images.to("cuda")
    kernels = ran(gpu, lambda: on_card(given).sum().backward())
    assert sum(kernel.flops for kernel in kernels) == counter.get_total_flops()


def test_channels_first_costs_tensor_cores_a_rewriting(gpu):
    conv = nn.Conv2d(16, 32, 3, bias=False).to("cuda")
    first = torch.randn(4, 16, 20, 20, device="cuda")
    last, conv_last = (
        first.to(memory_format=torch.channels_last),
        conv.to(memory_format=torch.channels_last),
    )
    assert len(ran(gpu, lambda: conv_last(last))) == 1
    conv = nn.Conv2d(16, 32, 3, bias=False).to("cuda")
    kernels = ran(gpu, lambda: conv(first))
    assert [kernel.kind for kernel in kernels] == ["tf32", "memory"]
    assert kernels[1].bytes == 2 * 4 * (4 * 16 * 20 * 20 + 4 * 32 * 18 * 18)


def test_fused_attention_writes_nothing_square_and_the_causal_one_does_half(gpu):
    query = torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    whole, causal = (
        ran(gpu, lambda c=c: F.scaled_dot_product_attention(query, query, query, is_causal=c))
        for c in (False, True)
    )
    assert whole[0].flops == 2 * causal[0].flops == 2 * 2 * 2 * 4 * 1024 * 1024 * 64
    assert whole[0].bytes < 2 * 4 * 1024 * 1024
    backward = ran(
        gpu, lambda: F.scaled_dot_product_attention(query, query, query).sum().backward()
    )
    assert [k.flops for k in backward if "attention" in k.op] == [
        whole[0].flops,
        whole[0].flops * 5 // 2,
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("whole_layer", [False, True])
def test_the_fast_path_of_transformers_takes_the_time_of_the_operations_that_it_stands_for(
    gpu, whole_layer, padded, dtype
):
    layer = nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True).eval().to("cuda", dtype)
    x = torch.randn(32, 256, 2048, device="cuda", dtype=dtype)
    padding = torch.zeros(32, 256, dtype=torch.bool, device="cuda") if padded else None

    def forward():
        if whole_layer:
            return layer(x, src_key_padding_mask=padding)
        return layer.self_attn(x, x, x, key_padding_mask=padding, need_weights=padded)

    def kernels_and_time(fast):
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            with torch.no_grad():
                return ran(gpu, forward), milliseconds(forward)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)

    fast, fast_ms = kernels_and_time(True)
    parts, parts_ms = kernels_and_time(False)
    assert short(fast)[-1] in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
    assert sum(k.flops for k in fast) == sum(k.flops for k in parts)
    assert fast_ms == pytest.approx(parts_ms, rel=0.3)


def test_the_gradient_of_a_softmax_is_multiplied_by_the_output_in_a_kernel_of_its_own(gpu):
    scores = torch.randn(8, 64, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    kernels = ran(gpu, lambda: weights.backward(torch.ones_like(weights)))
    whole = 8 * 64 * 64 * 4
    assert [(kernel.launches, kernel.bytes) for kernel in kernels if "softmax" in kernel.op] == [
        (2, (whole + whole + whole) + (whole + whole + whole // 2))
    ]


def test_views_and_room_start_no_kernel(gpu):
    a = torch.randn(8, 8, device="cuda")
    assert (
        ran(
            gpu,
            lambda: (
                a.t().reshape(64).view(2, 32)[0].expand(4, 32),
                torch.empty_like(a),
                a.detach(),
            ),
        )
        != []
    )
    assert (
        short(
            ran(gpu, lambda: (a.view(64)[3:], a.t(), a.unsqueeze(0), torch.empty(5, device="cuda")))
        )
        == []
    )


def test_an_expanded_tensor_and_an_embedding_are_read_for_what_is_needed_of_them(gpu):
    wide = torch.randn(1000, device="cuda").expand(1000, 1000)
    (kernel,) = ran(gpu, lambda: wide + 1)
    assert kernel.bytes == 4 * (1000 + 1000 * 1000)
    table, words = (
        nn.Embedding(100_000, 64).to("cuda"),
        torch.zeros(10, dtype=torch.long, device="cuda"),
    )
    (kernel,) = ran(gpu, lambda: table(words))
    assert kernel.bytes == 2 * 10 * 64 * 4 + 10 * 8


def test_optimizers_over_lists_start_few_kernels_and_a_fused_one_one(gpu):
    model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(20)]).to("cuda")
    elements = sum(p.numel() for p in model.parameters())

    def steps(**options):
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return ran(gpu, optimizer.step)

    fused = [k for k in steps(fused=True) if "fused" in k.op]
    assert [k.launches for k in fused] == [2], "40 tensors, at most 36 of four lists a launch"
    assert fused[0].bytes == elements * 4 * 7
    several = steps(foreach=True)
    assert 5 < sum(k.launches for k in several) < 40
    assert sum(k.launches for k in steps(foreach=False)) > 200


def test_a_step_that_reads_its_loss_waits_for_the_card(gpu):
    a = torch.randn(8, device="cuda")
    for waits in (lambda: a.sum().item(), torch.cuda.synchronize):
        assert kinds(gpu, waits).count("sync") == 1


@pytest.mark.parametrize("pin", [torch.Tensor.pin_memory, lambda host: host.clone().pin_memory()])
def test_with_pinned_memory_the_host_goes_on_unless_it_is_to_wait(gpu, pin):
    host, card = pin(torch.randn(1000)), torch.randn(1000, device="cuda")
    assert kinds(gpu, lambda: host.to("cuda", non_blocking=True)) == ["pinned"]
    assert kinds(gpu, lambda: host.copy_(card, non_blocking=True)) == ["pinned"]
    assert kinds(gpu, lambda: host.to("cuda")) == ["pinned", "sync"]


@pytest.mark.parametrize(("count", "sends"), [(1000, ["link"]), (1 << 20, ["link", "sync"])])
def test_with_other_memory_the_host_goes_on_only_after_little_that_it_sends(gpu, count, sends):
    host, card = torch.randn(count), torch.randn(count, device="cuda")
    assert kinds(gpu, lambda: host.to("cuda", non_blocking=True)) == sends
    assert kinds(gpu, lambda: card.copy_(host, True)) == sends
    assert kinds(gpu, lambda: host.copy_(card, non_blocking=True)) == ["link", "sync"]


def test_what_the_engine_and_an_optimizers_step_run_is_told_from_the_rest(gpu):
    model, optimizer, data = small_training()

    def step():
        model(data).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        torch.zeros(3, device="cuda")

    step()  # makes the states
    kernels = ran(gpu, step)
    of_the_step = {k.op for k in kernels if k.engine == BY_OPTIMIZER}
    assert "aten._foreach_sqrt.default" in of_the_step
    assert all("_foreach" in op for op in of_the_step)
    assert {k.engine for k in kernels if k.op == "aten.mm.default"} == {BY_AUTOGRAD}
    assert not any(k.engine for k in kernels if any(n in k.op for n in ("addmm", "norm", "zeros")))


def test_what_a_checkpoint_computes_again_is_the_scripts(gpu):
    model, data = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to("cuda"), torch.randn(4, 8).cuda()
    kernels = ran(gpu, lambda: checkpoint(model, data, use_reentrant=False).sum().backward())
    assert [k.engine for k in kernels if k.op == "aten.addmm.default"] == [0, 0]
    assert {k.engine for k in kernels if k.op == "aten.mm.default"} == {BY_AUTOGRAD}


def test_the_forward_pass_in_a_closure_of_an_optimizer_is_not_its_update(gpu):
    model, optimizer, data = small_training()

    def closure():
        loss = model(data).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    kernels = ran(gpu, lambda: optimizer.step(closure))
    assert {k.engine for k in kernels if k.op in ("aten.addmm.default", "aten.mean.default")} == {0}
    assert {k.engine for k in kernels if "_foreach_addcdiv" in k.op} == {BY_OPTIMIZER}


def test_a_recurrent_network_has_one_product_for_what_comes_in_and_one_a_time_step(gpu):
    lstm, data = nn.LSTM(20, 30, 2).to("cuda"), torch.randn(7, 5, 20, device="cuda")
    kernels = [k for k in ran(gpu, lambda: lstm(data)) if k.op == "cudnn_rnn"]
    assert [(k.launches, k.shape) for k in kernels] == [
        (1, (1, 35, 120, 20)),
        (7, (1, 5, 120, 30)),
        (1, (1, 35, 120, 30)),
        (7, (1, 5, 120, 30)),
    ]
    both = [k for k in ran(gpu, lambda: lstm(data)[0].sum().backward()) if k.op == "cudnn_rnn"]
    assert sum(k.flops for k in both) == 3 * sum(k.flops for k in kernels)


def train(gpu, steps: int) -> None:
    model, optimizer, data = small_training()
    gpu.cards.phase("train")
    for step in range(steps):
        model(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        gpu.cards.step(step + 1)


def test_the_trace_ends_with_what_ran_in_its_last_step_and_with_that_alone(gpu, trace_file):
    train(gpu, 3)
    gpu.cards.phase("eval")
    torch.randn(9, 9, device="cuda") @ torch.randn(9, 9, device="cuda")
    gpu.leave()
    trace = decode(trace_file.getvalue().splitlines())
    operations = short(list(trace.runs))
    assert operations[:2] == ["addmm", "sum"] and operations.count("addmm") == 1
    assert (1, 9, 9, 9) not in [kernel.shape for kernel in trace.runs]


def test_the_trace_ends_with_what_ran_outside_of_the_training(gpu, trace_file):
    a = torch.randn(9, 9, device="cuda")
    between, evaluation, broken_off = ("between", None), ("eval", 1), ("eval", 2)
    clock = gpu.clock
    for kept in (0, 1, 1):  # the first turns out to be none
        clock.outside(between)
        a @ a
        clock.outside(evaluation)
        (a + 1).relu()
        clock.keep_outside(evaluation, 8)
        clock.outside(broken_off)
        a / 2
        clock.outside_was(broken_off, between)
        clock.keep_outside(broken_off, 8)
        clock.outside(between)
        a * 2
        clock.keep_outside(between, kept)
        clock.outside(None)
        a - 1
    clock.outside(evaluation)
    a - 1
    gpu.leave()
    works = {
        (work.name, work.loader): work
        for work in decode(trace_file.getvalue().splitlines()).outside
    }
    assert works.keys() == {between, evaluation}, "what was never kept is not there"
    counts = {
        work: {kernel.op.split(".")[1]: times for times, kernel in ran.kernels}
        for work, ran in works.items()
    }
    assert (works[between].amount, counts[between]) == (2, {"mm": 2, "div": 2, "mul": 2})
    assert (works[evaluation].amount, counts[evaluation]) == (24, {"add": 3, "relu": 3})


def test_a_step_that_does_not_count_is_timed_only_where_there_is_no_other(gpu):
    """After its steps a trial goes on to the evaluation, by way of checkpoints that a shortened
    epoch ends with."""
    a = torch.randn(8, 8, device="cuda")
    a + 1
    gpu.cards.step(1, counts=False)
    a @ a
    gpu.cards.step(2)
    (a * 2).cpu()
    gpu.cards.step(3, counts=False)
    assert short(gpu.clock.last_step()) == ["mm"]
    a + 1
    gpu.cards.step(4, counts=False)
    assert short(gpu.clock.last_step()) == ["add"]


def test_rows_of_another_phase_are_dropped_by_the_way_and_events_read_the_same_time(
    gpu, monkeypatch
):
    x = torch.randn(64, 64, device="cuda")

    def encode() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(100):
            x.relu()
        end.record()
        return begin.elapsed_time(end)

    def step() -> None:
        x.sigmoid()
        gpu.cards.phase("encoding")
        encode()
        gpu.cards.phase("train")
        x.tanh()

    encode()  # the clock starts with the first event
    kept = encode()
    monkeypatch.setattr(module, "MOST_ROWS_AWAY", 10)
    assert short(ran(gpu, step)) == ["sigmoid", "tanh"]
    gpu.cards.phase("encoding")
    assert encode() == pytest.approx(kept)
    assert len(gpu.clock._rows) <= 11


def test_a_step_of_too_many_kernels_is_not_timed_and_the_next_one_is(gpu, monkeypatch):
    x = torch.randn(8, device="cuda")
    gpu.cards.phase("eval")
    monkeypatch.setattr(module, "MOST_ROWS", 10)
    gpu.cards.phase("train")
    monkeypatch.setattr(module, "MOST_ROWS_AWAY", 10)
    assert ran(gpu, lambda: [x.relu() for _ in range(30)]) == []

    def interrupted() -> None:
        for phase in ("train", "eval", "train"):
            gpu.cards.phase(phase)
            [x.relu() for _ in range(30)]

    assert ran(gpu, interrupted) == []
    assert short(ran(gpu, x.relu)) == ["relu"]


def test_rows_of_the_clock_change_nothing_of_the_memory(trace_file):
    without = io.StringIO()
    for rates, file in ((card(), trace_file), (NO_RATES, without)):
        with entered(rates, None, file) as gpu:
            train(gpu, 3)
    timed, untimed = (decode(file.getvalue().splitlines()) for file in (trace_file, without))
    assert timed.rows == untimed.rows and timed.notes == untimed.notes
    assert timed.runs and not untimed.runs, "a card whose rates are not known has no clock"


def milliseconds(work) -> float:
    """Of what `work` runs, by events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def timed(size: int) -> float:
    a = torch.randn(size, size, device="cuda")
    return milliseconds(lambda: a @ a)


def test_events_read_a_time_that_grows_with_the_work_and_is_the_same_at_each_run(gpu):
    timed(64)  # the clock starts with the first event
    first, small, large = timed(4096), timed(64), timed(4096)
    assert 0 < small < large == pytest.approx(first, rel=1e-6)
    assert 5.0 < large < 12.0, "milliseconds: 137 GFLOP at 19.5 TFLOP/s"


def test_an_operation_that_the_clock_cannot_judge_costs_its_launch_and_disturbs_nothing(
    gpu, monkeypatch
):
    def broken(*args):
        raise IndexError("no such argument")

    a = torch.randn(8, 8, device="cuda")
    monkeypatch.setitem(flops.COSTS, "mm", broken)
    assert [kernel[2:5] for kernel in ran(gpu, lambda: a @ a)] == [(0, 0, 1)]


def test_an_event_of_a_card_without_rates_reads_zero():
    with entered(NO_RATES):
        assert timed(64) == timed(4096) == 0.0
