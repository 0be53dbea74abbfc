"""The batch size finder beside Lightning's own, on one job, on imaginary cards."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

lightning = pytest.importorskip("lightning")
torch = pytest.importorskip("torch")

from lightning.fabric.utilities.exceptions import MisconfigurationException  # noqa: E402
from lightning.pytorch.callbacks import BatchSizeFinder  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from brimful.errors import DoesNotFit  # noqa: E402
from brimful.integrations.lightning import BrimfulBatchSizeFinder  # noqa: E402
from tests.brimful.integrations.card import MIB, card  # noqa: E402

WIDTH = 1024


class Job(lightning.LightningModule):
    """Each sample takes 1 MiB or so in training, and `in_evaluation` times that in evaluation."""

    def __init__(self, batch_size=2, samples=2000, in_evaluation=0):
        super().__init__()
        self.batch_size, self.samples, self.in_evaluation = batch_size, samples, in_evaluation
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
        self.ran = []  # ("train", "val" or "test", batch size)

    def loader(self):
        values = torch.randn(self.samples, 8, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(values, torch.zeros(self.samples).long())
        return DataLoader(data, batch_size=self.batch_size, shuffle=True)

    train_dataloader = val_dataloader = test_dataloader = loader

    def training_step(self, batch, _):
        self.ran.append(("train", len(batch[0])))
        x = batch[0].repeat(1, WIDTH // 8).unsqueeze(1).expand(-1, 64, -1)
        loss = nn.functional.cross_entropy(self.net(x).mean(1), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        self.ran.append(("val", len(batch[0])))
        torch.empty(len(batch[0]) * self.in_evaluation, MIB, dtype=torch.int8, device=self.device)

    def test_step(self, batch, _):
        self.ran.append(("test", len(batch[0])))
        torch.empty(len(batch[0]), MIB, dtype=torch.int8, device=self.device)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def sizes(self, stage: str) -> list[int]:
        return list(dict.fromkeys(size for name, size in self.ran if name == stage))


def trainer_of(*callbacks, epochs=1, accelerator="gpu", **more):
    return lightning.Trainer(
        accelerator=accelerator,
        devices=1,
        max_epochs=epochs,
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        limit_train_batches=3,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        **more,
    )


def fitted(finder, mib, job=None, **more):
    job = job or Job()
    with card(mib):
        trainer = trainer_of(finder, **more)
        trainer.fit(job)
    return job, trainer


def test_on_one_job_ours_trains_at_a_size_that_ran_and_lightnings_runs_out_beyond_the_maximum():
    job, trainer = fitted(BrimfulBatchSizeFinder(max_val=100), mib=160)
    assert trainer.global_step == 3 and 64 < job.batch_size <= 100
    assert max(job.sizes("train")) <= 100 and job.ran.count(("train", job.batch_size)) == 6
    if "max_val" in inspect.signature(BatchSizeFinder).parameters:  # from 2.6 on
        theirs = Job()
        with pytest.raises(torch.OutOfMemoryError):
            fitted(BatchSizeFinder(max_val=100), mib=160, job=theirs)
        assert theirs.batch_size == 128


def test_what_fills_the_card_was_run_and_leaves_the_margin_free():
    finder = BrimfulBatchSizeFinder(margin=0.1)
    job, _ = fitted(finder, mib=100)
    size = finder.optimal_batch_size
    assert size == job.batch_size and job.ran.count(("train", size)) == 6  # a trial, and training
    assert 16 < size < 128


class WithATable(Job):
    """Small batches take less than the optimizer's step."""

    def __init__(self):
        super().__init__(samples=10_000)
        self.table = nn.Parameter(torch.zeros(20_000, WIDTH))

    def training_step(self, batch, _):
        self.ran.append(("train", len(batch[0])))
        x = (batch[0] + self.table[0, :8]).repeat(1, 100)
        return nn.functional.cross_entropy(x.tanh(), batch[1])


def test_sizes_that_take_no_more_than_the_optimizers_step_do_not_end_the_search(caplog):
    job, _ = fitted(BrimfulBatchSizeFinder(), mib=4000, job=WithATable())
    assert job.sizes("train")[:3] == [2, 16, 128] and job.batch_size == 8192
    with caplog.at_level("INFO"):
        fitted(BrimfulBatchSizeFinder(max_trials=3), mib=4000, job=WithATable())
    assert "limited by nothing: no size up to 128 took more memory." in caplog.text


class WithATableBesideLayers(WithATable):
    def training_step(self, batch, i):
        return Job.training_step(self, (batch[0] + self.table[0, :8], batch[1]), i)


def test_a_trial_allocates_the_optimizers_state_in_its_first_step_as_training_does():
    job, trainer = fitted(BrimfulBatchSizeFinder(), mib=1000, job=WithATableBesideLayers())
    assert trainer.global_step == 3 and job.batch_size > 300


def test_evaluation_counts_where_it_takes_more_than_training():
    job, _ = fitted(BrimfulBatchSizeFinder(max_val=64), mib=200, job=Job(in_evaluation=5))
    assert job.batch_size < 40


class InMidTraining(BrimfulBatchSizeFinder):
    """As Lightning's documentation does it for fine-tuning in stages."""

    def on_fit_start(self, *args, **kwargs):
        return

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            self.weights = pl_module.net[2].weight.device, trainer.global_step
            pl_module.ran.append("search")
            random_state = torch.get_rng_state()
            self.scale_batch_size(trainer, pl_module)
            assert torch.equal(torch.get_rng_state(), random_state)
            pl_module.ran.append("found")
            assert trainer.global_step == self.weights[1] == 6


def test_a_search_in_mid_training_runs_its_batches_and_training_goes_on_where_it_was():
    job, trainer = fitted(InMidTraining(max_val=64), mib=200, epochs=3)
    begin, end = job.ran.index("search"), job.ran.index("found")
    tried = [size for stage, size in job.ran[begin + 1 : end] if stage == "train"]
    assert tried[:3] == [2, 2, 2] and tried[-3:] == [64, 64, 64]
    after = [size for stage, size in job.ran[end + 1 :] if stage == "train"]
    assert after == [64, 64, 64] and trainer.global_step == 9 and job.batch_size == 64


@pytest.mark.parametrize("finder, first", [(BrimfulBatchSizeFinder, 2), (InMidTraining, 8)])
def test_a_training_after_a_search_is_bit_for_bit_one_at_that_size_without_a_search(finder, first):
    def weights_after(size, *callbacks):
        torch.manual_seed(0)
        job = Job(size, samples=40)
        trainer_of(*callbacks, accelerator="cpu", epochs=4).fit(job)
        return job.net[2].weight

    assert torch.equal(weights_after(first, finder(max_val=8)), weights_after(8))


def test_a_test_run_finds_its_size_too_and_no_size_is_larger_than_the_data_set():
    job = Job(samples=50)
    with card(400):
        trainer_of(BrimfulBatchSizeFinder()).test(job, verbose=False)
    assert job.sizes("test")[-1] == job.batch_size == 50


def test_what_cannot_be_searched_is_said():
    with card(44), pytest.raises(DoesNotFit, match="No batch size ran"):
        trainer_of(BrimfulBatchSizeFinder()).fit(Job())
    job = Job()
    with pytest.raises(MisconfigurationException, match="given to fit"):
        trainer_of(BrimfulBatchSizeFinder(), accelerator="cpu").fit(job, job.loader())
    with pytest.raises(MisconfigurationException, match="'bs'"):
        trainer_of(BrimfulBatchSizeFinder(batch_arg_name="bs"), accelerator="cpu").fit(job)
    with pytest.raises(ValueError, match="margin"):
        BrimfulBatchSizeFinder(margin=1.0)


RANKS = """
import os
import sys
sys.path.insert(0, {folder!r})
from tests.brimful.integrations.test_lightning import BrimfulBatchSizeFinder, Job, lightning, torch

class OneRunsOut(Job):
    def training_step(self, batch, i):
        if self.global_rank == 1 and len(batch[0]) > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().training_step(batch, i)

job = OneRunsOut(samples=400)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, limit_train_batches=2,
    callbacks=[BrimfulBatchSizeFinder(max_val=64)], logger=False, enable_progress_bar=False,
    enable_checkpointing=False, enable_model_summary=False, num_sanity_val_steps=0,
    limit_val_batches=1,
)
trainer.fit(job)
# One write a rank: they share a pipe, and where Python does not buffer, print writes word by word.
words = ("SIZE", job.batch_size, trainer.global_step, job.ran[-1])
os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


@pytest.mark.heavy
def test_under_ddp_both_ranks_take_a_size_that_fits_both_though_one_alone_ran_out(tmp_path: Path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS.format(folder=str(Path(__file__).parents[3])))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SIZE")]
    assert len(lines) == 2 and lines[0] == lines[1], done.stderr[-2000:]
    _, size, steps, *_ = lines[0].split()
    assert 2 <= int(size) <= 20 and steps == "2"
