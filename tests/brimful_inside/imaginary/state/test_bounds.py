"""A mask that a script wrote at places it named has no more ones than these."""

from __future__ import annotations

import pytest
import torch


def zeros(length: int = 1000, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(length, dtype=dtype, device="cuda")


def places(count: int) -> torch.Tensor:
    return torch.randperm(1000, device="cuda")[:count]


def ones_of(mask: torch.Tensor) -> int:
    return len(torch.where(mask)[0])


def written(count: int) -> torch.Tensor:
    mask = zeros()
    mask[places(count)] = 1
    return mask


def test_a_sampler_of_boxes_gives_as_many_as_it_was_told(gpu):
    labels = torch.randint(0, 20, (1000,), device="cuda")
    positive = torch.where(labels >= 1)[0]
    chosen = [positive[torch.randperm(len(positive), device="cuda")[:count]] for count in (128, 384)]
    masks = [torch.zeros_like(labels, dtype=torch.uint8) for _ in chosen]
    for mask, where in zip(masks, chosen, strict=True):
        mask[where] = 1
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
    ],
)
def test_what_is_made_of_a_mask_keeps_its_bound_or_loses_it(gpu, change, most):
    assert ones_of(change(written(30))) == most


def test_a_mask_written_through_another_mask_has_no_more_ones_than_that(gpu):
    mask = zeros(dtype=torch.bool)
    mask[written(30).bool()] = True
    assert ones_of(mask) in (30, 1000)  # a masked fill is not followed, and then nothing is known


def test_values_written_by_a_tensor_count_as_ones(gpu):
    mask = zeros()
    mask[places(40)] = torch.ones(40, dtype=torch.uint8, device="cuda")
    assert ones_of(mask) == 40


def test_other_masks_select_all_there_is(gpu):
    assert ones_of(torch.rand(1000, device="cuda") > 0.5) == 1000 and gpu.approximations["nonzero"] == 1


def test_suppression_of_boxes_keeps_all_at_most(gpu):
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    boxes, scores = torch.rand(2000, 4, device="cuda"), torch.rand(2000, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
    assert kept.shape == (2000,) and kept.dtype == torch.int64 and kept.is_cuda
    pairs = 2000 * 32 * 8
    assert pairs < torch.cuda.max_memory_allocated() - before < pairs + 80_000
    assert gpu.approximations["non-maximum suppression"] == 1


def test_a_loop_over_classes_of_boxes_comes_to_an_end(gpu):
    def _batched_nms_vanilla(labels):
        return len(torch.unique(labels))

    labels = torch.randint(0, 90, (9000,), device="cuda")
    assert _batched_nms_vanilla(labels) == 1 and len(torch.unique(labels)) == 9000
