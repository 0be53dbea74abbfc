"""One rank that is started alone claims no more ranks than the script's own group has."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from brimful_inside import Refused  # noqa: E402


def test_a_group_of_another_size_is_refused_and_what_to_name_is_said(alone):
    dist.destroy_process_group()
    with pytest.raises(Refused, match=r"one rank of 8 .* a process group of 1: .*--gpu NAME:8"):
        dist.init_process_group("nccl", rank=0, world_size=1)
    dist.init_process_group("nccl", rank=3, world_size=8)
    assert dist.get_world_size() == 8
