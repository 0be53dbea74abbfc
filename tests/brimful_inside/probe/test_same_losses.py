"""With the probe and without, a script gives the same losses, bit for bit."""

import pytest

SCRIPT = """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self):
        self.own = np.random.default_rng(5)
    def __len__(self):
        return 200
    def __getitem__(self, i):
        noise = torch.randn(12) + np.random.rand() + random.random() + self.own.random()
        return torch.full((12,), float(i)) / 200 + noise, i % 3

if __name__ == "__main__":
    torch.manual_seed(1); np.random.seed(2); random.seed(3)
    model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for workers in (0, 2):
        loader = DataLoader(Noisy(), batch_size=16, shuffle=True, num_workers=workers, drop_last=True)
        for epoch in range(2):
            model.train()
            for x, y in loader:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad(); loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step(); scheduler.step()
                print(loss.item().hex())
            model.eval()
            with torch.no_grad():
                print(sum(model(x).sum().item() for x, _ in DataLoader(Noisy(), batch_size=50)).hex())
    print(random.random(), np.random.rand(), torch.rand(()).item())
"""


@pytest.mark.parametrize("worst_batch", [False, True], ids=["left alone", "scanned and found equal"])
def test_losses_are_the_same_bit_for_bit(run_trial, run_plainly, worst_batch):
    plain = run_plainly(SCRIPT)
    probed = run_trial(SCRIPT, cut=False, worst_batch=worst_batch, checksums=True, keep_out=True)
    assert plain.returncode == probed.exit_code == 0
    assert len(plain.stdout.splitlines()) == 53
    assert probed.stdout == plain.stdout
    assert probed.report["steps"] == 48
    assert (probed.report["worst_batch"] is not None) == worst_batch


def test_a_trial_that_draws_from_the_scripts_random_state_would_be_caught(run_plainly):
    changed = SCRIPT.replace("for workers in (0, 2):", "torch.rand(())\n    for workers in (0, 2):")
    assert changed != SCRIPT
    assert run_plainly(changed).stdout != run_plainly(SCRIPT).stdout
