import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from brimful_inside import Refused

from .conftest import RANK, RANKS

# names that scripts of today use
pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")


def test_collectives_write_into_what_is_there_and_take_nothing(alone, requested):
    tensor = torch.ones(RANKS * 4, device="cuda")
    share, all_of_them = torch.ones(4, device="cuda"), torch.ones(RANKS * RANKS * 4, device="cuda")
    before, peak = requested(), torch.cuda.max_memory_allocated()
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 1)
    dist.all_gather_into_tensor(all_of_them, tensor)
    dist.reduce_scatter_tensor(share, tensor)
    dist.all_to_all_single(torch.empty_like(tensor), tensor)
    dist.send(tensor, 0)
    dist.recv(tensor, 0)
    dist.barrier()
    assert requested() == before
    assert torch.cuda.max_memory_allocated() <= peak + 512  # what all_to_all_single wrote into


def test_lists_for_each_rank_are_flattened_for_nccl(alone, requested):
    tensor = torch.ones(1 << 18, device="cuda")
    outputs = [torch.empty_like(tensor) for _ in range(RANKS)]
    before = requested()
    for exchange, into in (
        (dist.all_gather, (outputs, tensor)),
        (dist.reduce_scatter, (tensor, outputs)),
    ):
        torch.cuda.reset_peak_memory_stats()
        exchange(*into)
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        assert (peak, requested()) == (before + RANKS * tensor.nbytes, before)


def test_work_can_be_waited_for_and_has_its_tensors(alone):
    tensor = torch.ones(3, device="cuda")
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait() and work.is_completed() and work.get_future().value()[0] is tensor


def test_sends_and_receives_go_together_in_a_batch(alone):
    sent, received = torch.ones(4, device="cuda"), torch.empty(4, device="cuda")
    operations = [dist.P2POp(dist.isend, sent, 4), dist.P2POp(dist.irecv, received, 2)]
    assert all(work.wait() for work in dist.batch_isend_irecv(operations))
    with dist._coalescing_manager(device=torch.device("cuda:0"), async_ops=True) as manager:
        dist.all_reduce(sent)
        dist.all_reduce(received)
    manager.wait()


def test_functional_collectives_make_their_outputs(alone, requested):
    tensor = torch.ones(RANKS, 16, device="cuda")
    before = requested()
    outputs = (
        functional.all_gather_tensor(tensor, 0, dist.group.WORLD),
        functional.reduce_scatter_tensor(tensor, "sum", 0, dist.group.WORLD),
        functional.all_reduce(tensor, "sum", dist.group.WORLD),
    )
    assert [each.shape for each in outputs] == [(RANKS * RANKS, 16), (1, 16), (RANKS, 16)]
    del outputs
    assert requested() == before


def test_groups_are_made_within_groups_and_their_communicators_counted(alone):
    tensor = torch.ones(3, device="cuda")
    dist.all_reduce(tensor)
    assert sorted(alone.communicators.values()) == [RANKS]
    mine = dist.new_group([2, 3])
    dist.new_group([4, 5])  # of others
    assert dist.get_world_size(mine) == 2 and dist.get_rank(mine) == 1
    for _ in range(2):
        dist.all_reduce(tensor, group=mine)
    assert sorted(alone.communicators.values()) == [2, RANKS]


def test_what_others_would_say_is_what_the_rank_knows_itself(alone):
    gathered_objects, names, taken = [None] * RANKS, ["mine"], [None]
    dist.all_gather_object(gathered_objects, {"rank": RANK})
    dist.broadcast_object_list(names, src=0)
    dist.scatter_object_list(taken, list(range(RANKS)), src=0)
    assert (gathered_objects, names, taken) == ([{"rank": RANK}] * RANKS, ["mine"], [RANK])
    count, host = torch.tensor([5.0]), dist.new_group(backend="gloo")
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        dist.all_reduce(count, op=operation, group=host)
        assert count.item() == 5 * RANKS
    assert sum(alone.approximations.values()) == 5


def test_sums_on_the_host_count_all_ranks_also_of_parameters_and_not_of_groups_of_others(alone):
    weight, lost = torch.nn.Parameter(torch.ones(2)), torch.tensor([3.0])
    host, others = dist.new_group(backend="gloo"), dist.new_group([0, 1], backend="gloo")
    dist.all_reduce(weight, group=host)
    dist.reduce(lost, RANK, group=host)
    assert weight.tolist() == [RANKS] * 2 and lost.item() == 3 * RANKS
    with pytest.warns(UserWarning, match="does not belong"):
        dist.all_reduce(lost, group=others)
    assert lost.item() == 3 * RANKS


def test_a_sampler_gives_the_rank_its_share_and_spawning_runs_the_one_rank(alone):
    assert list(torch.utils.data.DistributedSampler(range(80), shuffle=False)) == list(
        range(RANK, 80, RANKS)
    )
    calls = []
    torch.multiprocessing.spawn(
        lambda rank, extra: calls.append((rank, extra)), args=("x",), nprocs=RANKS
    )
    assert calls == [(RANK, "x")]
    assert (
        torch.multiprocessing.spawn(calls.append, nprocs=RANKS, join=False).join()
        and calls[1] == RANK
    )
    with pytest.raises(ValueError, match="rank 3 is none of them"):
        torch.multiprocessing.spawn(calls.append, nprocs=2)


def test_sizes_that_are_gathered_are_this_ranks_own(alone):
    size = torch.tensor([5, 64], device="cuda")
    sizes = [torch.empty_like(size) for _ in range(RANKS)]
    dist.all_gather(sizes, size)
    assert max(int(each[1]) for each in sizes) == 64
    together = torch.empty(RANKS * 2, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(together, size)
    assert together.view(RANKS, 2).max(0).values.tolist() == [5, 64]


def test_gathered_values_that_are_not_known_are_not_those_that_stood_there(alone):
    loss = torch.randn(2, device="cuda")
    losses = [torch.full_like(loss, 3.0) for _ in range(RANKS)]
    dist.all_gather(losses, loss)
    assert losses[0].tolist() == torch.randn(2, device="cuda").tolist() != [3.0, 3.0]


def test_the_store_of_a_rank_started_alone_sets_compares_and_deletes(alone):
    store = dist.distributed_c10d._get_default_store()
    before = store.num_keys()
    assert (
        store.compare_set("key", "", "first") == b"first"
        and store.compare_set("key", "other", "second") == b"first"
    )
    assert (
        store.num_keys() == before + 1 and store.delete_key("key") and not store.delete_key("key")
    )


def test_a_group_of_another_size_is_refused_and_what_to_name_is_said(alone):
    dist.destroy_process_group()
    with pytest.raises(Refused, match=r"one rank of 8 .* a process group of 1: .*--gpu NAME:8"):
        dist.init_process_group("nccl", rank=0, world_size=1)
    dist.init_process_group("nccl", rank=3, world_size=8)
    assert dist.get_world_size() == 8
