"""One batch of a first trial goes through the script's own loader, and what every card refuses
there is refused."""

import pytest

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self, device): self.device = device
    def __len__(self): return 64
    def __getitem__(self, i): return torch.ones(8, device=self.device)

def two(items):
    assert len(items) == 4, "a batch of four"
    return torch.stack(items)

def main(device="cpu", steps=6, **more):
    net = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for x in DataLoader(Rows(device), 4, **more):
        net(x.cuda()).sum().backward(); optimizer.step(); optimizer.zero_grad()

if __name__ == "__main__":
    if torch.cuda.is_available():
        main(%s)
    print("trained")
"""
FORKED = "Cannot re-initialize CUDA in forked subprocess"
SPAWNED = 'num_workers=1, multiprocessing_context="spawn"'


@pytest.fixture
def train(run_trial):
    def run(arguments: str, first: bool = True):
        timed = 8 if first else None
        return run_trial(
            SCRIPT % arguments, device="imaginary", worst_batch=True, time_loader=timed
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('"cuda", num_workers=2', FORKED),
        ('"cuda", pin_memory=True', "only dense CPU tensors can be pinned"),
        pytest.param(
            f"collate_fn=lambda items: torch.stack(items), {SPAWNED}",
            "pickle",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_what_a_loader_cannot_do_on_any_card_ends_the_trial(train, arguments, message):
    trial = train(arguments)
    assert trial.exit_code == 1
    assert message in trial.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "num_workers=2, pin_memory=True",
        '"cuda"',
        "num_workers=2, collate_fn=two",
        pytest.param(SPAWNED, marks=pytest.mark.heavy),
    ],
)
def test_a_sound_loader_trains(train, arguments):
    trial = train(arguments)
    assert trial.exit_code == 0, trial.stderr
    assert "trained" in trial.stdout and trial.report["steps"] >= 3


def test_later_trials_start_no_workers(train):
    assert train('"cuda", num_workers=2', first=False).exit_code == 0
