"""A training by the pipeline is seen as any other: samples of a batch and of a step, the data set's
length, the worst batch.
"""

import pytest

from tests.brimful_inside.helper import CARD, run_trial

pytestmark = pytest.mark.heavy  # processes of their own

SCRIPT = """
    import sys
    import numpy as np, torch
    from torch import nn
    from brimful_train.config import DataConfig
    from brimful_train.data.arrays import Arrays
    from brimful_train.data.epoch_sampler import EpochSampler, Position
    from brimful_train.data.pipeline import DataPipeline

    kind, micro_batch = sys.argv[1], int(sys.argv[2])
    workers = None if sys.argv[3] == "measured" else int(sys.argv[3])

    class Made(torch.utils.data.Dataset):
        def __init__(self, n):
            self.n, self.sizes = n, np.random.default_rng(0).integers(5, 60, n)
        def __len__(self):
            return self.n
        def __getitem__(self, i):
            size = int(self.sizes[i]) if kind == "sized" else 20
            return torch.randn(size, 16), torch.tensor(i % 10)
        def collate(self, samples):
            x = nn.utils.rnn.pad_sequence([s[0] for s in samples], batch_first=True)
            return {"x": x, "y": torch.stack([s[1] for s in samples])}

    def data_of(n):
        if kind != "arrays":
            return Made(n)
        return Arrays(x=torch.zeros(n, 20, 16, dtype=torch.uint8), y=torch.arange(n) % 10)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data, test = data_of(1000), data_of(200)
    sized = {"sizes": data.sizes} if kind == "sized" else {}
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    sampler = EpochSampler(1000, seed=0, micro_batch=micro_batch, accumulation=2, **sized)
    pipeline = DataPipeline(data, sampler, device, DataConfig(workers=workers), 0)
    in_order = EpochSampler(200, seed=0, micro_batch=50, accumulation=1, shuffle=False)
    on_test = DataPipeline(test, in_order, device, DataConfig(workers=0), 0)
    for epoch in range(3):
        for step in pipeline.steps(Position(epoch)):
            for part, n in enumerate(step.parts):
                batch = step.load(part, 0, n)
                loss = nn.functional.cross_entropy(model(batch["x"].float()).mean(1), batch["y"])
                (loss * n / step.samples).backward()
            optimizer.step(); optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for step in on_test.steps(Position(epoch)):
                for part, n in enumerate(step.parts):
                    model(step.load(part, 0, n)["x"].float())
        model.train()
        print("epoch", epoch)
"""


def probed(tmp_path, kind, device, micro_batch=32, workers="0", **config):
    """The trial, and its two loaders by role: one for training and one for evaluation, whatever was
    measured with others.
    """
    more = {"card": CARD} if device == "imaginary" else {}
    trial = run_trial(
        tmp_path,
        SCRIPT,
        argv=(kind, str(micro_batch), workers),
        device=device,
        **more,
        **config,
        exit_code=0,
    )
    assert len(trial.report["loaders"]) == 2
    return trial, {loader["role"]: loader for loader in trial.report["loaders"]}


@pytest.mark.parametrize(
    ("kind", "workers", "device"),
    [
        ("arrays", "0", "imaginary"),
        ("made", "1", "cpu"),
    ],
)
def test_batches_steps_and_lengths_are_seen(tmp_path, kind, workers, device):
    trial, loaders = probed(tmp_path, kind, device, workers=workers, warmup_steps=1, steps=3)
    report = trial.report
    ahead = int(
        workers == "1"
    )  # the two batches that its worker makes ahead are a step more, where it is timed
    assert report["ended"] == "steps_done" and report["steps"] == 4 + ahead
    assert (
        report["micro_batches_per_step"][:4] == [2] * 4
        and report["samples_per_step"][:4] == [64] * 4
    )
    assert loaders["train"]["dataset_length"] == 1000 and loaders["eval"]["dataset_length"] == 200
    assert {batch["samples"] for batch in loaders["train"]["batches"]} == {32}
    assert set(report["phases"]) >= {"train", "eval"}


def test_the_worst_batch_of_samples_that_vary_is_made(tmp_path):
    trial, loaders = probed(tmp_path, "sized", "imaginary", workers="1", worst_batch=True)
    worst = trial.report["worst_batch"]
    assert worst["varies"] and worst["dataset_length"] == 1000 and "from 5 to 59" in worst["what"]
    assert all(batch["shapes"][0] == [32, 59, 16] for batch in loaders["train"]["batches"])


def test_a_trial_of_an_epoch_of_one_step_has_its_steps_and_resident_samples_are_known_to_be_alike(
    tmp_path,
):
    trial, _ = probed(
        tmp_path, "arrays", "imaginary", micro_batch=500, worst_batch=True, warmup_steps=1, steps=3
    )
    assert (
        trial.report["ended"] == "steps_done" and trial.report["samples_per_step"][:4] == [1000] * 4
    )
    assert not trial.report["worst_batch"]["varies"]


def test_a_trace_has_no_short_step_at_the_end_of_an_epoch_and_a_run_which_no_loader_ends_has(
    tmp_path,
):
    """800 samples and 200 are left: one micro-batch of 200, where all other steps have two."""
    trial, _ = probed(
        tmp_path, "arrays", "imaginary", micro_batch=400, worst_batch=True, warmup_steps=1, steps=3
    )
    assert (
        trial.report["micro_batches_per_step"][:4] == [2] * 4
        and trial.report["samples_per_step"][:4] == [800] * 4
    )
    (tmp_path / "run").mkdir()
    trial, loaders = probed(tmp_path / "run", "arrays", "cpu", micro_batch=400, cut=False)
    assert trial.report["samples_per_step"] == [800, 200] * 3
    assert loaders["train"]["samples_seen"] == 3000 and loaders["eval"]["samples_seen"] == 600
