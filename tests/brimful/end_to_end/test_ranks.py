"""torchrun with two ranks, on a CPU and each on an imaginary card of its own: one sample of
both.
"""

import pytest

from brimful.show.console import render_text
from brimful.units import MIB
from brimful.values import Outcome
from tests.brimful.end_to_end.helper import brimful, left_over, python, script, torchrun

#: On a card each rank has one of its own, and the second one's model is twice as wide.
SCRIPT = """
import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--hungry", type=int, default=-1)
args = parser.parse_args()
rank, on_cards = int(os.environ["LOCAL_RANK"]), torch.cuda.is_available()
if on_cards:
    torch.cuda.set_device(rank)
dist.init_process_group("nccl" if on_cards else "gloo")
ranks = [None] * dist.get_world_size()
dist.all_gather_object(ranks, rank)
assert ranks == list(range(dist.get_world_size())), ranks
told = torch.tensor([7, -1], device="cuda" if on_cards else "cpu") if rank == 0 else None
told = torch.full((2,), 5, device="cuda" if on_cards else "cpu") if told is None else told
dist.broadcast(told, src=0)
assert told.tolist() == [7, -1], told
inputs = torch.randn(512, 64)
dataset = TensorDataset(inputs, inputs.mean(1, keepdim=True))
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))
width, device = 256 * (1 + rank * on_cards), "cuda" if on_cards else "cpu"
model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1)).to(device)
model = model if on_cards else nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (features, targets) in enumerate(loader):
    if step == 2 and rank == args.hungry:
        torch.empty(1 << 50)  # a petabyte
    loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""
EFFECTIVE = {"loader_batch_size": 16, "batches_per_step": 1, "ranks": 2, "samples_per_step": 32}


def test_two_ranks_are_one_sample(tmp_path):
    done = brimful(
        tmp_path,
        "audit",
        "--device",
        "cpu",
        "--json",
        *torchrun(script(tmp_path, SCRIPT), "--batch-size", 16),
        code=0,
    )
    assert done.json["effective"].items() >= EFFECTIVE.items()
    (sample,) = done.record.trials
    assert [report.rank for report in sample.reports] == [0, 1]
    by_rank = [16 * len(report.step_s) / sum(report.step_s) for report in sample.reports]
    assert sample.samples_per_s == pytest.approx(sum(by_rank), rel=1e-6)
    assert sample.peak.host_bytes == sum(
        report.peak_unphased.host_bytes for report in sample.reports
    )
    assert sample.peak.host_bytes > 200 * MIB
    assert not left_over(done.home)


def test_out_of_memory_on_one_rank_is_reported_as_out_of_memory(tmp_path):
    done = brimful(
        tmp_path,
        "audit",
        "--device",
        "cpu",
        *torchrun(script(tmp_path, SCRIPT), "--batch-size", 16, "--hungry", 1),
        code=3,
    )
    assert "out of host memory" in done.err
    assert done.record.trials[0].outcome is Outcome.OUT_OF_HOST_MEMORY
    assert not left_over(done.home)


def test_each_rank_has_a_card_and_exchanges_objects_with_the_other(tmp_path):
    done = brimful(
        tmp_path,
        "audit",
        "--gpu",
        "a100-40gb:2",
        "--json",
        *torchrun(script(tmp_path, SCRIPT), "--batch-size", 16),
        code=0,
    )
    assert done.json["effective"].items() >= EFFECTIVE.items()
    (sample,) = done.record.trials
    assert [(report.rank, [card.index for card in report.cards]) for report in sample.reports] == [
        (0, [0]),
        (1, [1]),
    ]
    first, second = (report.cards[0].peak.allocated_bytes for report in sample.reports)
    assert first < second == sample.peak.allocated_bytes
    assert [report.communicators for report in sample.reports] == [[2], [2]]
    assert {name: peak["allocated_bytes"] for name, peak in done.json["cards"].items()} == {
        "rank 0, cuda:0": first,
        "rank 1, cuda:1": second,
    }
    assert not left_over(done.home)


def test_a_rank_too_many_gets_pytorchs_error(tmp_path):
    done = brimful(
        tmp_path,
        "audit",
        "--gpu",
        "a100-40gb",
        "--json",
        *torchrun(script(tmp_path, SCRIPT), "--batch-size", 16),
        code=5,
    )
    assert "invalid device ordinal" in done.err


ALONE = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
weight = torch.zeros(1 << 26, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
"""


WHICH = """
import argparse, torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
size = parser.parse_args().batch_size
dist.init_process_group("nccl")
model = nn.parallel.DistributedDataParallel(nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = TensorDataset(torch.randn(4096, 1024))
for (inputs,) in DataLoader(dataset, size, sampler=DistributedSampler(dataset)):
    model(inputs.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


GROUPED = ALONE.replace(
    "for _ in range(3):",
    "group = dist.new_group([0, 1])\nfor _ in range(3):",
).replace("dist.all_reduce(weight.grad)", "dist.all_reduce(weight.grad, group=group)")


def test_a_slower_network_changes_nothing_for_a_group_within_a_machine(tmp_path):
    command = python(script(tmp_path, GROUPED))

    def exchange(link):
        words = "--gpu", "h100:2x2", "--link", link, "--no-what-if", "--json"
        return brimful(tmp_path, "predict", *words, *command, code=0).json["speed"]["exchange"]

    fast, slow = exchange("400Gb"), exchange("1Gb")
    assert "between machines 1Gb, as given" in slow["note"]
    assert slow["value"] == fast["value"]


DDP = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group("nccl")
layers = [nn.Linear(4096, 4096) for _ in range(6)]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(4096, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_over_a_slower_network_a_step_is_longer_and_less_of_its_exchange_is_hidden(tmp_path):
    command = python(script(tmp_path, DDP))

    def speed(*cards):
        words = "--gpu", *cards, "--no-what-if", "--json"
        return brimful(tmp_path, "predict", *words, *command, code=0).json["speed"]

    fast, slow = (speed("h100:8x8", "--link", link) for link in ("400Gb", "1GB/s"))
    assert slow["exchange"]["value"] > 10 * fast["exchange"]["value"]
    assert slow["step_s"]["value"] > 2 * fast["step_s"]["value"]
    shares = [speed["exposed"]["value"] / speed["exchange"]["value"] for speed in (fast, slow)]
    assert shares[0] < min(0.5, shares[1]) < 1, "backward hides the rest"
    one = speed("h100:8", "--ranks", "8")
    assert one["exchange"]["note"] == "NVLink"
    assert one["exchange"]["value"] <= fast["exchange"]["value"]


PAIRS = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
weight = torch.zeros(1 << 24, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.sum().backward()
    CALL
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "bytes_by_network"),
    [
        ("dist.send(weight.grad, 1)", 0),
        ("dist.send(weight.grad, 2)", 1 << 26),
        ("dist.all_reduce(weight.grad)", 3 << 24),
    ],
)
def test_what_a_card_sends_by_itself_leaves_by_its_own_network_and_rings_by_all(
    tmp_path, call, bytes_by_network
):
    command = python(script(tmp_path, PAIRS.replace("CALL", call)))
    words = "--gpu", "h100:2x2", "--link", "8Gb", "--no-what-if", "--json"
    speed = brimful(tmp_path, "predict", *words, *command, code=0).json["speed"]
    seconds = bytes_by_network / 1e9 / 0.7 or (1 << 26) / 450e9 / 0.7
    assert speed["exchange"]["value"] == pytest.approx(seconds, rel=0.02)


def test_numbers_of_machines_are_compared_each_by_a_trace_of_its_own(tmp_path):
    words = "--gpu", "h100:8x2,h100:8x4", "--link", "10Gb", "--no-what-if"
    command = python(script(tmp_path, WHICH), "--batch-size", 16)
    done = brimful(tmp_path, "predict", *words, "--json", *command, code=0)
    which = {line["machines"]: line for line in done.json["rows"]}
    assert {machines: line["cards"] for machines, line in which.items()} == {2: 16, 4: 32}
    prices = [which[machines]["price_per_h"]["value"] for machines in (2, 4)]
    assert prices[1] == pytest.approx(2 * prices[0])
    rates = [which[machines]["samples_per_s"]["value"] for machines in (2, 4)]
    assert 1.5 * rates[0] < rates[1] < 2 * rates[0], "more ranks, and a longer ring"
    text = render_text(done.record)
    assert "h100:8x2" in text and "h100:8x4" in text


def test_the_interval_of_a_rank_that_exchanges_with_others_is_that_of_several_ranks(tmp_path):
    words = "--gpu", "a100-40gb", "--ranks", "2", "--no-what-if", "--json"
    command = python(script(tmp_path, ALONE))
    peak = brimful(tmp_path, "predict", *words, *command, code=0).json["peak"]
    (part,) = (part for part in peak["interval_parts"] if "FSDP" in part["evidence"])
    assert part["above_bytes"] / peak["reserved_bytes"] >= 0.2, "of one card it is +0.4 %"
