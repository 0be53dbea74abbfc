"""Where arrays live: by the memory that is free, told with the reason."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from brimful.errors import DoesNotFit, UsageError
from brimful.train.data import resident
from brimful.train.data.arrays import Arrays
from brimful.train.data.config import DataConfig
from brimful.train.data.resident import Resident, decide_residence
from tests.brimful_inside.helper import run_trial

CARD = torch.device("cuda", 0)
IMAGINARY = {"name": "A card", "total_bytes": 8 << 30, "context_bytes": 0, "capability": [8, 0], "multiprocessors": 108}
MIB = 1 << 20


def decided(monkeypatch, free_device, free_host, ranks=1, size=100 * MIB, **config):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free_device, 80 << 30))
    monkeypatch.setattr(resident.host, "free_bytes", lambda: free_host)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    return decide_residence(Arrays(torch.empty(size, dtype=torch.uint8)), CARD, DataConfig(**config))


@pytest.mark.parametrize(
    ("free_device", "free_host", "ranks", "lives", "why"),
    [
        (400, 400, 1, "device", "25% of 400 MiB free on the device hold it"),
        (399, 400, 1, "pinned", "25% of 400 MiB free on the host hold it"),
        (399, 400, 2, "host", "a copy for each of 2 ranks"),
        (399, 399, 1, "host", "neither do 25% of 399 MiB free on the host"),
    ],
)
def test_data_lives_where_its_share_of_the_free_memory_holds_it(monkeypatch, free_device, free_host, ranks, lives, why):
    told = decided(monkeypatch, free_device * MIB, free_host * MIB, ranks)
    assert told.requested is None and told.effective == lives
    assert "the data is 100 MiB" in told.why and why in told.why


def test_what_is_asked_for_may_take_all_that_is_free_and_no_more(monkeypatch):
    assert decided(monkeypatch, 100 * MIB, 0, residence="device").effective == "device"
    assert decided(monkeypatch, 0, 100 * MIB, residence="pinned").effective == "pinned"
    assert decided(monkeypatch, 400 * MIB, 400 * MIB, residence="host").effective == "host"
    with pytest.raises(DoesNotFit, match=r"the data is 100 MiB, and 99\.0? ?MiB|the data is 100 MiB, and 99 MiB"):
        decided(monkeypatch, 99 * MIB, 99 << 30, residence="device")
    with pytest.raises(DoesNotFit, match="free on the host do not hold it"):
        decided(monkeypatch, 99 << 30, 99 * MIB, residence="pinned")


def test_the_share_can_be_set(monkeypatch):
    assert decided(monkeypatch, 200 * MIB, 0, memory_share=0.5).effective == "device"
    assert decided(monkeypatch, 200 * MIB, 0, memory_share=0.4).effective == "host"


def test_other_data_sets_are_behind_a_loader_whatever_was_asked():
    class Made(Dataset):
        pass

    told = decide_residence(Made(), CARD, DataConfig(residence="device"))
    assert (told.requested, told.effective) == ("device", "loader") and "Made is no `Arrays`" in told.why


def test_rows_are_copied_on_the_host():
    data = Arrays(x=torch.arange(6).reshape(3, 2))
    batch = Resident(data, "host", torch.device("cpu")).take(torch.tensor([2, 0]))
    assert batch["x"].tolist() == [[4, 5], [0, 1]]
    batch["x"].fill_(-1)
    assert data.tensors[0].min() == 0


@pytest.mark.parametrize(
    ("said", "config"),
    [
        ("config.data.residence = 'disk'", {"residence": "disk"}),
        ("config.data.workers = -1", {"workers": -1}),
        ("config.data.memory_share = 0", {"memory_share": 0}),
        ("config.data.prefetch = 0", {"prefetch": 0}),
    ],
)
def test_settings_that_cannot_be_meant_are_said(said, config):
    with pytest.raises(UsageError) as caught:
        DataConfig(**config)
    assert caught.value.problem == said and caught.value.suggestion


SCRIPT = """
    import torch
    from brimful.train.data.arrays import Arrays
    from brimful.train.data.course import EpochSampler, Position
    from brimful.train.data.feed import DataConfig, DataPipeline

    card = torch.device("cuda")
    data = Arrays(torch.zeros(4096, 1024, dtype=torch.uint8), torch.zeros(4096, dtype=torch.int64))
    for residence in ("device", "pinned", "host"):
        before = torch.cuda.memory_allocated()
        sampler = EpochSampler(4096, seed=0, micro_batch=64, accumulation=1)
        feed = DataPipeline(data, sampler, card, DataConfig(residence=residence), 0)
        held = torch.cuda.memory_allocated() - before
        step = next(iter(feed.steps(Position())))
        images, labels = step.load(0, 0, 64)
        print(feed.residence.effective, held, images.device.type, tuple(images.shape), images.dtype, labels.device.type)
        del feed, step, images, labels
"""


def test_on_an_imaginary_card_only_what_lives_on_the_device_takes_its_memory(tmp_path):
    told = run_trial(tmp_path, SCRIPT, device="imaginary", card=IMAGINARY)
    assert told.exit_code == 0, told.stderr
    size = 4096 * 1024 + 4096 * 8
    assert told.stdout.splitlines() == [
        f"{residence} {held} cuda (64, 1024) torch.uint8 cuda"
        for residence, held in (("device", size), ("pinned", 0), ("host", 0))
    ]
