"""Training arguments by a plan, and what the callback says, with the real Trainer."""

import sys
from dataclasses import replace

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
torch = pytest.importorskip("torch")

from transformers import Trainer, TrainingArguments  # noqa: E402

from brimful import command, record, values  # noqa: E402
from brimful.integrations.attempts import records_of_this_script  # noqa: E402
from brimful.integrations.transformers import BrimfulCallback, apply  # noqa: E402
from brimful.values import EffectiveSetting, Objective, Plan  # noqa: E402
from tests.brimful.integrations.card import card  # noqa: E402


def plan(**settings) -> Plan:
    rows = tuple(EffectiveSetting(name, None, value, "tried") for name, value in settings.items())
    return Plan(Objective.THROUGHPUT, rows, "python train.py", True, 3, 0)


def arguments(tmp_path, **more) -> TrainingArguments:
    given = {"per_device_train_batch_size": 64, "learning_rate": 1e-3, "optim": "adamw_torch"}
    given |= {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
    given |= {"save_strategy": "no", "report_to": []}
    return TrainingArguments(str(tmp_path), **(given | more))


def of(changed: TrainingArguments) -> tuple[int, int, float]:
    return (
        changed.per_device_train_batch_size,
        changed.gradient_accumulation_steps,
        changed.learning_rate,
    )


def test_a_plan_keeps_the_samples_of_an_update_and_its_learning_rate(tmp_path, capsys):
    given = arguments(tmp_path)
    assert of(apply(plan(batch_size=16), given)) == (16, 4, 1e-3)
    # 24 divides no 64, and 16 is near enough
    assert of(apply(plan(batch_size=24), given)) == (16, 4, 1e-3)
    assert of(apply(plan(batch_size=104), given)) == (64, 1, 1e-3)
    assert of(given) == (64, 1, 1e-3)
    assert "per_device_train_batch_size is 16 in place of 64" in capsys.readouterr().err


def test_where_they_cannot_stay_the_learning_rate_follows_the_rule_of_its_optimizer(tmp_path):
    given = arguments(tmp_path, per_device_train_batch_size=61)
    size, accumulation, rate = of(apply(plan(batch_size=24), given))
    assert (size, accumulation) == (24, 3) and rate == pytest.approx(1e-3 * (72 / 61) ** 0.5)
    sgd = replace(given, optim="sgd")
    assert of(apply(plan(batch_size=24), sgd))[2] == pytest.approx(1e-3 * 72 / 61)


def test_workers_evaluation_and_a_learning_rate_of_the_plan_are_set(tmp_path):
    changed = apply(plan(num_workers=3, eval_batch_size=128, lr=0.5), arguments(tmp_path))
    assert changed.dataloader_num_workers == 3 and changed.per_device_eval_batch_size == 128
    assert of(changed) == (64, 1, 0.5)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 2)

    def forward(self, x=None, labels=None):
        scores = self.layer(x)
        return {"loss": torch.nn.functional.cross_entropy(scores, labels), "logits": scores}


def test_the_callback_says_plan_findings_and_peaks_of_training_and_evaluation(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-size", "64"])
    monkeypatch.setenv("BRIMFUL_HOME", str(tmp_path / "home"))
    leave(tmp_path, "tune", plan(batch_size=16))
    finding = values.Diagnostic("hidden-cap", "train.py:3 caps it at 2.", "so", "Take it away.")
    audit = values.Audit(
        {}, values.EffectiveBatch(2, 1.0, 1, 2.0), (finding,), None, None, None, {}, ()
    )
    leave(tmp_path, "audit", audit)
    # a record of another script, which counts for nothing
    leave(tmp_path, "tune", plan(batch_size=99), script="other.py")
    data = [{"x": torch.randn(64), "labels": number % 2} for number in range(128)]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "A100-SXM4-40GB")
    with card(512):
        given = arguments(tmp_path)
        Trainer(
            Net(), given, train_dataset=data, eval_dataset=data, callbacks=[BrimfulCallback()]
        ).train()
    text = "\n".join([line for line in capsys.readouterr().err.splitlines() if "brimful:" in line])
    assert "a device trains at 64, 1 times an update; the plan of" in text and "has 16" in text
    assert "finding: train.py:3 caps it at 2. Take it away." in text
    assert "train peak" in text and "eval peak" in text and "reserved (measured)" in text


def test_words_that_brimful_cannot_start_have_no_records_and_stop_nothing(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", "--batch-size", "{batch_size}", "--batch-size=4"])
    assert list(records_of_this_script("tune")) == []


def leave(folder, verb, entry, script="train.py"):
    """A record of this verb for the script at hand on a card."""
    from brimful.measure.gpus import find_gpu

    opened = values.Opened(
        2,
        record.new_record_id(verb),
        verb,
        (),
        command.parse(("python", script, "--batch-size", "{batch_size}")),
        values.Device("imaginary", "a100-40gb", find_gpu("a100-40gb")),
        None,
        0.0,
        working_folder=str(folder),
    )
    writer = record.RecordWriter.create(folder / "home", opened)
    writer.append(entry)
    writer.close()
