"""`brimful compare` as a user calls it, on trainings of a second."""

import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.cli import app
from brimful.measure.gather import Heartbeats
from tests.brimful.end_to_end.helper import brimful, script, start

#: Prints an accuracy of its own after each epoch, and can be slow, broken or of other data.
LEARNS = """
import argparse
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--samples", type=int, default=256)
parser.add_argument("--seed", type=int, default=3)
parser.add_argument("--epochs", type=int, default=10000)
parser.add_argument("--sleep", type=float, default=0.002)
parser.add_argument("--fails", action="store_true")
args = parser.parse_args()
torch.manual_seed(args.seed)
print("seed", args.seed)
inputs = torch.randn(args.samples, 16)
data = TensorDataset(inputs, inputs.mean(1, keepdim=True) * 4)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), args.lr)
for epoch in range(args.epochs):
    for features, targets in DataLoader(data, args.batch_size, shuffle=True):
        loss = nn.functional.mse_loss(model(features), targets)
        if args.fails:
            raise RuntimeError("the loss is lost")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.sleep)
    print(f"val_acc={1 - loss.item():.3f}", flush=True)
open("checkpoint.pt", "w").close()
"""


def command(*words: object) -> str:
    return shlex.join([sys.executable, "train.py", *map(str, words)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    script(tmp_path, LEARNS)
    return tmp_path


def compared(folder: Path, *words: object, code: int = 0, home: Path | None = None):
    return brimful(folder, "compare", *words, code=code, home=home)


@pytest.fixture
def called_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """(exit code, standard error) of `compare` in this process, which starts no other."""
    monkeypatch.setenv("BRIMFUL_HOME", str(folder / "home"))
    monkeypatch.chdir(folder)

    def call(*words: str) -> tuple[int, str]:
        return app.run(["compare", *words]), " ".join(capfd.readouterr().err.split())

    return call


def test_two_commands_run_by_turns_and_leave_nothing_behind(folder: Path):
    before = sorted(os.listdir(folder))
    result = compared(
        folder,
        *("--samples", 4000, "--json"),
        *("--", command("--seed", 3), command("--seed", 3, "--batch-size", 32, "--lr", 0.04)),
    )
    assert sorted({*os.listdir(folder)} - {"home"}) == before
    answer = result.json
    quantities = {q["code"]: q for q in answer["quantities"]}
    assert quantities["samples_per_step"]["a"] == 8 and quantities["samples_per_step"]["b"] == 32
    assert quantities["samples_per_s"]["ratio"]["value"] > 1.2  # the sleep is shared by more
    assert "time_to_loss_s" in quantities and "loss_at_equal_samples" in quantities
    first, second = answer["sides"]
    assert first["last_learning_rates"] == [0.01] and second["last_learning_rates"] == [0.04]
    assert first["curve"][-1][0] > 1500
    assert Path(answer["page"]).read_text().count("<svg") >= 4  # two curves, wide and narrow

    # A B, B A, each pair with a seed of its own
    trials = result.record.trials
    assert [t.samples_per_step for t in trials] == [8, 32, 32, 8]
    printed = [(Path(result.record.folder) / t.folder / "stdout.txt").read_text() for t in trials]
    assert [text.split()[1] for text in printed] == ["3", "3", "4", "4"]
    assert result.record.comparison is not None and result.record.comparison.verdict


def test_runs_end_by_the_clock_and_evaluate_all_that_they_have(folder: Path):
    result = compared(
        folder,
        *("--minutes", 0.02, "--pairs", 1, "--json", "--"),
        *(command(), command("--batch-size", 16)),
    )
    for trial in result.record.trials:
        assert 0.8 < sum(trial.step_s) < 3
        # what `brimful monitor` shows while it goes on
        told = Heartbeats(Path(result.record.folder) / trial.folder).read(1.0, None)
        assert told.steps > 0 and told.samples_per_s > 0 and told.loss > 0
    assert result.json["basis"] == "2 runs of 1.20 s"
    assert [w["code"] for w in result.json["warnings"]].count("one-pair") == 1


def test_of_other_data_no_loss_is_compared(folder: Path):
    assert "learning was not compared: A trains on 256 samples and B on 128" in " ".join(
        compared(
            folder,
            *("--samples", 500, "--pairs", 1, "--"),
            *(command("--sleep", 0), command("--sleep", 0, "--samples", 128)),
        ).out.split()
    )


def test_a_command_that_fails_is_named_with_its_error(folder: Path):
    result = compared(
        folder, "--samples", 200, "--", command("--sleep", 0), command("--fails"), code=5
    )
    assert "B (" in result.err and "--fails" in result.err
    assert "the loss is lost" in result.err


def test_interrupted_after_a_pair_it_says_what_that_pair_showed(folder: Path):
    process = start(
        folder,
        *("compare", "--minutes", 0.02, "--pairs", 50, "--"),
        *(command(), command("--batch-size", 16)),
    )
    records = folder / "home"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(records.glob("*/trial-004")):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert re.search("B (is|runs)", out) and "interrupted after" in out


def test_a_plan_is_compared_with_the_users_own_settings(folder: Path):
    home = folder / "home"
    words = ("--", sys.executable, "train.py", "--batch-size", "8", "--sleep", "0.01")
    options = ("--objective", "largest", "--max-batch-size", 64)
    brimful(folder, "tune", *options, *words, home=home, code=0)
    result = compared(folder, "--plan", "--samples", 600, "--pairs", 1, "--json", *words, home=home)
    own, planned = (side["settings"].get("batch_size") for side in result.json["sides"])
    assert own in (None, 8)
    assert planned == 64
    assert result.json["verdict"].startswith("Your own settings (A), the plan (B): B ")


def test_predictions_are_compared_on_a_card_that_is_not_here(folder: Path):
    source = LEARNS.replace("nn.Linear(16, 1)", "nn.Linear(16, 1).cuda()")
    source = source.replace("model(features), targets", "model(features.cuda()), targets.cuda()")
    (folder / "train.py").write_text(source)
    result = compared(
        folder,
        *("--gpu", "a100-40gb", "--json", "--"),
        *(command("--batch-size", 8), command("--batch-size", 4096)),
    )
    quantities = {q["code"]: q for q in result.json["quantities"]}
    assert quantities["peak_allocated_bytes"]["ratio"]["value"] > 1
    assert "learning was not compared: nothing was trained" in result.json["verdict"]
    assert result.json["source"] == "predicted"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "two commands, each in quotes"),
        (("latest", "--", "a b", "c d"), "a record would change nothing here"),
        (("--", "python", "train.py"), "two commands, each in quotes"),
        (("--", "python train.py"), "two commands, each in quotes"),
        (("--minutes", "1", "--to-end", "--", "a b", "c d"), "exclude each other"),
        (("--plan", "--", sys.executable, "train.py"), "has left a plan"),
        (("--pairs", "0", "--", "a b", "c d"), "--pairs 0"),
    ],
)
def test_what_cannot_be_meant_is_said_in_a_sentence(called_here, words, said):
    code, err = called_here(*words)
    assert code == 2 and said in err
