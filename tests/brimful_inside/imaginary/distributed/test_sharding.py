"""DDP, ZeRO and FSDP run as PyTorch has them; what they hold is checked against sums done by
hand."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from .conftest import RANKS

WIDTH, DEPTH = 512, 4
LAYER = WIDTH * WIDTH * 4  # bytes of one weight in float32
PARAMETERS = DEPTH * LAYER


def net(device: str = "cuda", depth: int = DEPTH) -> nn.Sequential:
    with torch.device(device):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth)))


def mesh():
    return init_device_mesh("cuda", (RANKS,))


def data() -> torch.Tensor:
    return torch.randn(2, WIDTH, device="cuda")


def sharded(model: nn.Sequential) -> nn.Sequential:
    for module in (*model, model):
        fully_shard(module, mesh=mesh())
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(data()).sum().backward()
    optimizer.step()


def steps(model: nn.Module, count: int = 3) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        step(model, optimizer)
    return optimizer


@pytest.mark.parametrize(("options", "kept"), [({}, 3), ({"gradient_as_bucket_view": True}, 2)])
def test_ddp_keeps_weights_buckets_and_gradients_unless_these_are_views_of_the_buckets(
    alone, requested, options, kept
):
    model = net()
    assert requested() == PARAMETERS
    parallel = DistributedDataParallel(model, device_ids=[0], **options)
    assert requested() == 2 * PARAMETERS
    for count in (1, 2):
        optimizer = steps(parallel, count)
        assert requested() == kept * PARAMETERS
    optimizer.zero_grad()
    assert requested() == 2 * PARAMETERS


def exchanged(gpu, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes over the card's link in a step, by kind."""
    gpu.cards.step(1)
    gpu.clock.last_step()
    step(model, optimizer)
    gpu.cards.step(2)
    kernels = gpu.clock.last_step()
    return {
        kind: sum(kernel.bytes for kernel in kernels if kernel.kind == kind)
        for kind in ("collective", "peer")
    }


def test_gradients_are_reduced_over_the_link_and_layers_gathered_and_scattered(
    alone,
):
    parallel, share = DistributedDataParallel(net(), device_ids=[0]), (RANKS - 1) / RANKS
    reduced = {"collective": 2 * share * PARAMETERS, "peer": 0}
    assert exchanged(alone, parallel, steps(parallel, 3)) == reduced
    model = sharded(net())
    gathered_twice_and_scattered = pytest.approx(3 * share * PARAMETERS, rel=0.01)
    assert exchanged(alone, model, steps(model, 2))["collective"] == gathered_twice_and_scattered


def test_buckets_are_rebuilt_by_the_order_of_gradients_and_their_size(alone, requested):
    """By default the first bucket has 1 MiB, one layer here, and the next ones 25 MiB; a size that
    is given is for all."""
    for options, sizes in (
        ({}, [LAYER, 3 * LAYER]),
        ({"bucket_cap_mb": 2}, [2 * LAYER, 2 * LAYER]),
    ):
        parallel = DistributedDataParallel(net(), device_ids=[0], **options)
        steps(parallel)
        logged = parallel._get_ddp_logging_data()
        assert logged["has_rebuilt_buckets"]
        assert [int(size) for size in str(logged["rebuilt_bucket_sizes"]).split(",")] == sizes


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_ddp_runs_with_its_options(alone, options):
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(WIDTH, WIDTH).cuda(), nn.Linear(WIDTH, WIDTH).cuda()

        def forward(self, x):
            return self.used(x)

    parallel = DistributedDataParallel(Branches(), device_ids=[0], **options)
    steps(parallel)
    assert (
        parallel.module.used.weight.grad is not None and parallel.module.unused.weight.grad is None
    )


def test_zero_keeps_the_states_of_one_share(alone, requested):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    parallel = DistributedDataParallel(net(), device_ids=[0], gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        parallel.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3
    )
    for _ in range(2):
        step(parallel, optimizer)
        # four layers over eight ranks: one each, or none
        shares = 2 * LAYER if dist.get_rank() < DEPTH else 0
        assert requested() == 2 * PARAMETERS + shares


def test_fsdp2_keeps_its_share_of_weights_gradients_and_states(alone, requested):
    model = sharded(net())
    assert requested() == PARAMETERS // RANKS
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    assert requested() == 4 * PARAMETERS // RANKS  # weight, gradient, and two states
    optimizer.zero_grad()
    assert requested() == 3 * PARAMETERS // RANKS


@pytest.mark.parametrize("depth", [4, 8])
def test_fsdp2_holds_three_layers_at_most_in_the_forward_pass(alone, requested, depth):
    """A layer's weights, the all-gather's output that they are copied from, and that of the layer
    before, still held.

    From torch 2.14 or 2.15 on weights of whole rows are gathered in their place, without a copy."""
    model, rows = sharded(net(depth=depth)), data()
    before = requested()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        model(rows)
    peak = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    layers = peak // LAYER
    assert layers == 3 or (layers == 2 and torch.__version__ >= "2.14")
    assert peak <= layers * LAYER + 2 * rows.nbytes
    assert requested() == before


def test_a_model_of_no_memory_is_filled_when_it_is_sharded(alone, requested):
    model = net("meta")
    fully_shard(model, mesh=mesh())
    assert requested() == 0
    model.to_empty(device="cuda")
    assert requested() == PARAMETERS // RANKS
    for layer in model:
        layer.reset_parameters()
    assert next(model.parameters()).device.type == "cuda" and requested() == PARAMETERS // RANKS


def test_fsdp1_keeps_its_share_as_well(alone):
    model = FullyShardedDataParallel(net(), device_id=torch.cuda.current_device())
    assert torch.cuda.memory_allocated() == PARAMETERS // RANKS
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    optimizer.zero_grad()
    torch.cuda.synchronize()  # blocks that another stream used come back when the host has waited
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_allocated() == 3 * PARAMETERS // RANKS


def test_columns_and_rows_of_a_layer_on_a_rank_each(alone, requested):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = net()[:2]
    parallelize_module(model, mesh(), {"0": ColwiseParallel(), "1": RowwiseParallel()})
    torch.cuda.empty_cache()
    assert requested() == 2 * LAYER // RANKS
    out = model(data())
    out.sum().backward()
    assert out.shape == (2, WIDTH)


def test_buckets_are_traced_as_gradients(alone, trace_file):
    before = trace_file.getvalue().count('"gradient"')
    parallel = DistributedDataParallel(net(), device_ids=[0])
    alone.cards.flush()
    assert (
        trace_file.getvalue().count('"gradient"') == before + 1
    )  # one for all, until the order of gradients is known
    del parallel


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_of_a_batch_are_shared_by_all_ranks(alone, requested, dtype):
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(64)).cuda()
    images = torch.randn(4, 64, 8, 8, device="cuda", dtype=dtype, requires_grad=True)
    before = requested()
    out = norm(images)
    # The output; mean and inverse deviation of all ranks in float32; the counts of all ranks, for
    # the backward pass.
    assert requested() - before == out.nbytes + 2 * 64 * 4 + RANKS * 4
    out.sum().backward()
    assert images.grad.shape == images.shape and norm.weight.grad.shape == (64,)


def test_states_are_gathered_and_saved(alone, tmp_path):
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = sharded(net())
    optimizer = torch.optim.AdamW(model.parameters())
    step(model, optimizer)
    states, _ = get_state_dict(model, optimizer)
    assert {name: share.full_tensor().shape for name, share in states.items()} == dict.fromkeys(
        states, (WIDTH, WIDTH)
    )
    checkpoint.save({"model": states}, checkpoint_id=str(tmp_path / "saved"))
