"""Numbers that came from the host are still known on the card; what meets unknown ones is unknown,
and reads as zero.

A mask that a script wrote at places it named has no more ones than these."""

from itertools import product

import pytest
import torch

from brimful_inside.imaginary.state import known_values
from tests.brimful_inside.imaginary.conftest import peak_of


def test_what_was_sent_to_the_card_comes_back(gpu):
    lengths = torch.tensor([3, 9, 4]).to("cuda")
    assert lengths.tolist() == [3, 9, 4] and lengths.max().item() == 9 and int(lengths[2]) == 4
    assert lengths.cpu().tolist() == [3, 9, 4] and torch.equal(
        lengths, torch.tensor([3, 9, 4], device="cuda")
    )
    assert not torch.equal(lengths, torch.tensor([3, 9, 5], device="cuda")) and "9" in str(lengths)


def test_what_is_made_on_the_card_of_numbers_is_known(gpu):
    assert torch.tensor([2, 5], device="cuda").sum().item() == 7
    assert torch.full((3,), 4, device="cuda").sum().item() == 12
    assert torch.arange(5, device="cuda")[-1].item() == 4
    assert torch.empty(2, device="cuda").fill_(3).tolist() == [3.0, 3.0]
    weights = torch.randn(4, 4, device="cuda")
    assert torch.randn(40, 40, device="cuda").new_ones(2).sum().item() == 2
    assert weights.new_tensor([6]).item() == 6 and weights.new_ones(2).sum().item() == 2


def test_numbers_that_are_written_one_after_another_to_what_was_made_empty_are_known(gpu):
    lengths = torch.zeros(1, dtype=torch.int64, device="cuda").new(3)  # as beam search has it
    for at, length in enumerate((5, 257, 9)):
        lengths[at] = length
    assert (
        lengths.max().item() == 257
        and lengths[0].item() == 5
        and torch.ones(300)[: lengths[2]].shape == (9,)
    )
    lengths[1] = torch.randn(3, device="cuda").argmax()
    assert lengths.max().item() == 0, "a part of it is not known any more"
    lengths[0] = 7
    assert lengths.max().item() == 0, "nor does a later number make up for it"
    assert torch.empty(2, dtype=torch.int64, device="cuda").random_(5, 9).fill_(3).sum().item() == 6


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x.add_(torch.randn(3, device="cuda")),
        lambda x: x + torch.randn(3, device="cuda"),
        lambda x: x.normal_(),
        lambda x: x.copy_(torch.randn(3, device="cuda")),
    ],
)
def test_what_meets_unknown_values_is_unknown(gpu, spoil):
    known = torch.full((3,), 5.0, device="cuda")
    assert known.sum().item() == 15
    assert spoil(known).tolist() == torch.randn(3, device="cuda").tolist() != [5.0, 5.0, 5.0]


def test_views_share_their_numbers_and_copies_do_not(gpu):
    table = torch.zeros(2, 3, device="cuda")
    table[1, 2] = 7
    row = table[1]
    row[0] = 2
    assert table.tolist() == [[0, 0, 0], [2, 0, 7]] and table.t()[2].tolist() == [0, 7]
    source = torch.tensor([1, 2])
    sent = source.cuda()
    source.zero_()
    sent.cpu().zero_()
    assert sent.tolist() == [1, 2]


def test_counts_of_known_numbers_have_their_true_length(gpu):
    batch = torch.tensor([0, 0, 1, 4]).cuda()
    assert batch.bincount().shape == (5,)
    assert torch.arange(3, device="cuda").repeat_interleave(
        torch.tensor([2, 0, 3], device="cuda")
    ).shape == (5,)
    assert not gpu.approximations
    torch.randint(0, 9, (4,), device="cuda").bincount(minlength=9)
    assert gpu.approximations == {"bincount": 1}
    assert torch.randint(0, 9, (4,), device="cuda").bincount().shape == (1,), "at least one"


def test_known_values_take_no_memory_of_the_card_and_large_and_broken_numbers_are_not_kept(gpu):
    kept = torch.arange(1000, device="cuda")
    total = kept[:10].sum().item()
    assert total == 45 and torch.cuda.memory_allocated() == 8192
    assert torch.ones(5, 5, device="cuda").sum().item() == 1
    assert torch.linspace(0, 1, 100, device="cuda").sum().item() == 1


def packed(positions: torch.Tensor) -> bool:
    """As Transformers looks for it (masking_utils.py, find_packed_sequence_indices)."""
    first = positions[:, :1] - 1
    sequence = (torch.diff(positions, prepend=first, dim=-1) != 1).cumsum(-1)
    return not (sequence[:, -1] == 0).all()


@pytest.mark.parametrize("batch", [3, 1024, 50_000])
def test_positions_are_known_for_a_batch_of_any_size(gpu, batch):
    positions = torch.arange(300, device="cuda").unsqueeze(0)
    assert not packed(positions.expand(batch, -1)) and not packed(positions.repeat(batch, 1))
    assert packed((positions % 100).expand(batch, -1) + torch.zeros_like(positions))
    ones = torch.ones((batch, 300), dtype=torch.int64, device="cuda")
    assert (ones[:, 5:] == 1).all() and not ones.ne(1).any() and ones[:, 0][-1].item() == 1


CHANGES = {
    "add": lambda x, y: x + y,
    "compare": lambda x, y: x[:, :-1] < y[:, 1:],
    "cumsum over rows": lambda x, y: x.cumsum(0),
    "cumsum in a row": lambda x, y: x.cumsum(1),
    "last column": lambda x, y: x[:, -1].clone(),
    "row of the batch": lambda x, y: y + x[0],
    "cat of columns": lambda x, y: torch.cat([x, y], 1),
    "cat of rows": lambda x, y: torch.cat([x, y]),
    "transposed": lambda x, y: x.t() + y.t(),
    "all": lambda x, y: (x >= 0).all(),
    "sum": lambda x, y: x.sum(),
    "sum over rows": lambda x, y: x.sum(0),
    "largest of each row": lambda x, y: x.max(1)[1],
    "flipped": lambda x, y: x.flip(0),
    "one row is another": lambda x, y: rewritten(x.clone(), 2, slice(None)),
    "written through a view": lambda x, y: rewritten(x.clone(), 1, slice(3, 5)),
    "rows by number": lambda x, y: x[torch.arange(3, device=x.device)] + y[3:4],
    "like": lambda x, y: torch.ones_like(x) + y,
    "repeated": lambda x, y: x[:1].repeat(len(x), 2),
    "as bytes": lambda x, y: (x + 1).view(torch.int8),
    "through other shapes": lambda x, y: (x + 1).view(-1, 10) - 1,
}


def rewritten(x, row, columns):
    x[row, columns] = 9
    return x


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_known_of_a_batch_whose_rows_are_alike_is_what_a_card_has(gpu, name):
    some_rows = (
        "sum",
        "sum over rows",
        "cumsum over rows",
        "one row is another",
        "written through a view",
        "cat of rows",
    )
    may_be_unknown = (
        *some_rows,
        "transposed",
        "row of the batch",
        "flipped",
        "rows by number",
        "through other shapes",
        "as bytes",
    )

    def made(batch, length, device):
        row = torch.arange(length, device=device)
        return CHANGES[name](row.unsqueeze(0).expand(batch, -1) + 3, (row * 2 % 7).repeat(batch, 1))

    for batch, length in product((4, 10, 400, 5000), (5, 40, 400)):
        known, true = gpu.known.values(made(batch, length, "cuda")), made(batch, length, "cpu")
        assert known is None or torch.equal(known, true)
        assert known is not None or (2 * batch * length > 1 << 18 and name in may_be_unknown)


def test_numbers_of_the_host_decide_nothing_in_two_dimensions_by_whatever_way_they_came(gpu):
    assert packed(torch.arange(300).repeat(2, 1).to("cuda")), "its own batch would not be"
    lengths = torch.full((8,), 40).to("cuda")
    mask = torch.arange(40, device="cuda") < lengths[:, None]
    assert gpu.known.values(mask) is None and gpu.known.values(lengths) is not None
    buffer = torch.zeros((8, 40), dtype=torch.int64, device="cuda")
    assert gpu.known.values(buffer) is not None
    for spoil in (
        lambda: buffer.copy_(torch.ones((8, 40), dtype=torch.int64)),
        lambda: buffer.add_(lengths[:, None]),
    ):
        buffer.zero_()
        assert gpu.known.values(buffer) is not None
        spoil()
        assert gpu.known.values(buffer) is None


def test_transformers_leaves_out_the_mask_of_what_is_not_packed(gpu):
    masking = pytest.importorskip("transformers.masking_utils")
    positions = torch.arange(64, device="cuda").unsqueeze(0)
    assert masking.find_packed_sequence_indices(positions.expand(4, -1)) is None
    assert (
        masking.find_packed_sequence_indices(torch.arange(64).unsqueeze(0).to("cuda")) is not None
    )


def test_numbers_picked_by_unknown_places_are_spread_over_those_there_are(gpu):
    graphs = torch.repeat_interleave(torch.arange(60), 5).to("cuda")
    kept = torch.randn(300, device="cuda").topk(200).indices
    for picked in (graphs[kept], graphs.index_select(0, kept)):
        assert picked.shape == (200,) and int(picked.max()) == 59 and int(picked.min()) == 0
        assert torch.bincount(picked).shape == (60,)
    assert torch.equal(graphs[torch.randn(300, device="cuda").argsort()].cpu(), graphs.cpu())


def test_unknown_places_of_weights_or_of_unknown_numbers_stay_unknown(gpu):
    places = torch.randn(3, device="cuda").argsort()
    weights, unknown = torch.ones(3).to("cuda"), torch.randn(3, device="cuda").argsort()
    assert gpu.known.values(weights) is not None
    for source in (weights, unknown):
        assert gpu.known.values(source[places]) is None


def test_what_one_side_decides_is_known_whatever_the_other_is(gpu):
    unknown, unfinished = (
        torch.randn(3, device="cuda") > 0,
        torch.randint(0, 2, (3,), device="cuda"),
    )
    yes = torch.ones(3, dtype=torch.bool, device="cuda")
    assert (unknown | yes).all().item() is True and (yes & unknown).any().item() is False
    assert (unfinished & ~(unknown | yes)).max().item() == 0 and bool(
        (unfinished & ~yes).max() == 0
    )
    assert not bool((unfinished & yes).max() == 0), "this side decides nothing"
    unknown |= yes
    assert unknown.all()


def places(count: int) -> torch.Tensor:
    return torch.randperm(1000, device="cuda")[:count]


def ones_of(mask: torch.Tensor) -> int:
    return len(torch.where(mask)[0])


def written(count: int, value=1) -> torch.Tensor:
    mask = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    mask[places(count)] = value
    return mask


def test_a_sampler_of_boxes_gives_as_many_as_it_is_asked_for(gpu):
    labels = torch.randint(0, 20, (1000,), device="cuda")
    positive, masks = torch.where(labels >= 1)[0], []
    for count in (128, 384):
        masks.append(torch.zeros_like(labels, dtype=torch.uint8))
        masks[-1][positive[torch.randperm(len(positive), device="cuda")[:count]]] = 1
    assert ones_of(masks[0]) == 128 and ones_of(masks[0] | masks[1]) == 512
    assert len(labels[torch.where(masks[0] | masks[1])[0]]) == 512
    assert ones_of(torch.cat(masks)) == 512


@pytest.mark.parametrize(
    ("change", "most"),
    [
        (lambda mask: mask.bool(), 30),
        (lambda mask: mask > 0, 30),
        (lambda mask: mask != 0, 30),
        (lambda mask: mask == 1, 30),
        (lambda mask: mask[:20], 20),
        (lambda mask: mask & torch.randint(0, 2, (1000,), device="cuda", dtype=torch.uint8), 30),
        (lambda mask: mask.clone(), 30),
        (lambda mask: mask.zero_(), 0),
        (lambda mask: mask == 0, 1000),
        (lambda mask: ~mask.bool(), 1000),
        (lambda mask: mask.add_(1), 1000),
        (lambda mask: mask | torch.randint(0, 2, (1000,), device="cuda", dtype=torch.uint8), 1000),
        (lambda mask: mask.view(1, 1000).expand(3, 1000), 3000),
        (lambda mask: mask.view(10, 100).index_fill_(0, places(2) % 10, 1), 230),
        (lambda mask: mask & torch.randint(0, 2, (3, 1000), device="cuda", dtype=torch.uint8), 90),
        (lambda mask: mask | mask.expand(2, 1000).clone(), 2000),
        (lambda mask: mask.view(10, 100)[:1] | mask.view(10, 100), 330),
    ],
)
def test_what_is_made_of_a_mask_keeps_its_bound_or_loses_it(gpu, change, most):
    assert ones_of(change(written(30))) == most
    by_tensor = written(30, torch.ones(30, dtype=torch.uint8, device="cuda"))
    assert ones_of(change(by_tensor)) == most


def test_suppression_of_boxes_keeps_all_at_most(gpu):
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    boxes, scores = torch.rand(2000, 4, device="cuda"), torch.rand(2000, device="cuda")
    kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
    assert kept.shape == (2000,) and kept.dtype == torch.int64 and kept.is_cuda
    pairs = 2000 * 32 * 8
    assert pairs < peak_of(lambda: torch.ops.torchvision.nms(boxes, scores, 0.5)) < pairs + 80_000
    assert gpu.approximations["non-maximum suppression"] == 2


def test_a_loop_over_classes_of_boxes_comes_to_an_end(gpu):
    def _batched_nms_vanilla(labels):
        return len(torch.unique(labels))

    labels = torch.randint(0, 90, (9000,), device="cuda")
    assert _batched_nms_vanilla(labels) == 1 and len(torch.unique(labels)) == 9000


def test_numbers_are_worked_out_by_one_thread_and_the_script_keeps_its_threads(gpu, monkeypatch):
    threads, asked = torch.get_num_threads(), []
    places = torch.arange(100_000, device="cuda")
    torch.set_num_threads(3)
    try:
        original = torch.set_num_threads
        monkeypatch.setattr(
            torch, "set_num_threads", lambda count: (asked.append(count), original(count))
        )
        assert int((places < 5).sum()) == 5
        assert asked and asked[::2] == [1] * (len(asked) // 2) and set(asked[1::2]) == {3}
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError):
            known_values._alone(lambda: 1 / 0)
        assert torch.get_num_threads() == 3, "also after an error"
    finally:
        monkeypatch.undo()
        torch.set_num_threads(threads)
