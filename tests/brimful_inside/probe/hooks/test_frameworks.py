"""Frameworks that own the loop: seen as any script, asked to evaluate after the measured steps, and
not to resume.
"""

from types import SimpleNamespace

import pytest

from brimful_inside.probe.hooks import frameworks
from brimful_inside.wire import Ends

pytestmark = pytest.mark.heavy

TRAINER = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
class Data(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        ids = torch.arange(5 + i % 20); return {"input_ids": ids, "labels": ids}
def pad(samples):
    pad = torch.nn.utils.rnn.pad_sequence
    return {k: pad([s[k] for s in samples], batch_first=True) for k in samples[0]}
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=32, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, eval_strategy="steps",
    eval_steps=30, save_strategy="steps", save_steps=30, report_to="none",
    remove_unused_columns=False, disable_tqdm=True,
    max_steps=60)
trainer = Trainer(model, arguments, data_collator=pad, train_dataset=Data(), eval_dataset=Data())
trainer.train(resume_from_checkpoint="out/checkpoint-999")
"""

LIGHTNING = """
import torch, lightning
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(400, 8), torch.randint(0, 3, (400,)))
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__(); self.net = torch.nn.Linear(8, 3)
    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def validation_step(self, batch, _):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
trainer = lightning.Trainer(max_epochs=3, logger=False, enable_progress_bar=False,
                            accumulate_grad_batches=2,
                            default_root_dir="out", num_sanity_val_steps=0,
                            accelerator="cpu", devices=1)
trainer.fit(Net(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=10))
"""


@pytest.mark.parametrize("script", [TRAINER, LIGHTNING], ids=["transformers", "lightning"])
def test_a_framework_is_seen_and_evaluates_and_leaves_nothing_and_does_not_resume(
    run_trial, tmp_path, script
):
    trial = run_trial(script, keep_out=True, worst_batch=True)
    report = trial.report
    assert trial.exit_code == 0 and trial.failures == [], trial.stderr
    assert report["ended"] == "steps_done" and report["steps"] == 4
    assert report["micro_batches_per_step"] == [2] * 4 and report["samples_per_step"] == [8] * 4
    assert {"train", "eval"} <= set(report["phases"])
    assert sorted(seen["role"] for seen in report["loaders"]) == ["eval", "train"]
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["script.py"]
    assert len(report["optimizers"]) == 1 and report["optimizers"][0]["name"] == "AdamW"
    assert any("a trial starts anew" in note for note in report["notes"]) == (
        "checkpoint-999" in script
    )


def test_a_trainer_that_changes_the_loss_of_a_looked_up_micro_batch_in_place_trains_on(run_trial):
    """Transformers does `loss *= num_processes` on what the model returned."""
    script = TRAINER.replace("accumulation_steps=2", "accumulation_steps=8").replace(
        "5 + i % 20", "16"
    )
    report = run_trial(script, device="imaginary", trace=True, keep_out=True).report
    assert report["ended"] == "steps_done" and report["micro_batches_per_step"] == [8] * 4


@pytest.mark.parametrize("sees", [True, False])
def test_an_evaluation_that_a_trial_is_not_to_see_is_not_asked_for(monkeypatch, sees):
    probe = SimpleNamespace(
        config=SimpleNamespace(ends=Ends(see_eval=sees)),
        course=SimpleNamespace(measured=True, evaluated=False),
    )
    monkeypatch.setattr(frameworks, "current_probe", lambda: probe)
    assert frameworks._wants_evaluation() is sees
    probe.course.evaluated = True
    assert not frameworks._wants_evaluation()
