"""What piles up on an imaginary card from step to step and over an evaluation, where a trial sees
the first few alone.
"""

import pytest

from brimful_inside.probe.memory.leaks import LEAST, Reading, bytes_kept

SAME = [[[8, 32]]] * 4

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader
keeps = sys.argv[1]
model = torch.nn.Linear(64, 65536).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outputs, total, predictions = [], 0.0, []
for x in DataLoader(torch.ones(96, 64), 8):
    out = model(x.cuda())
    loss = out.mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    total = total + loss
    if keeps == "outputs":
        outputs.append(out)
model.eval()
with torch.no_grad():
    for x in DataLoader(torch.ones(1000, 64), 8):
        prediction = model(x.cuda())
        cycle = [prediction]
        cycle.append(cycle)
        if keeps == "predictions":
            predictions.append(prediction)
        if keeps == "numbers":
            predictions.append(prediction.mean())
"""
OUTPUT = 8 * 65536 * 4


GROWING = [[[8, length]] for length in (10, 20, 30, 40)]


@pytest.mark.parametrize(
    ("alive", "shapes", "least", "kept"),
    [
        pytest.param((10, 13, 16, 20), SAME, 2, 3, id="the smallest difference"),
        pytest.param((10, 10, 10), SAME, 2, 0, id="none"),
        pytest.param((10, 13, 12, 15), SAME, 2, 0, id="not all are growth"),
        pytest.param((10, 13), SAME, 2, 0, id="one alone"),
        pytest.param((10,), SAME, 2, 0, id="no difference"),
        pytest.param((), SAME, 2, 0, id="nothing read"),
        pytest.param((10, 20, 30, 40), GROWING, 2, 0, id="larger batches"),
        pytest.param((40, 45, 47, 49), GROWING[::-1], 2, 2, id="smaller batches, and more alive"),
        pytest.param((10, 14, 18), [None] * 3, 2, 4, id="equal, without shapes"),
        pytest.param((10, 14, 19), [None] * 3, 2, 0, id="not equal, without shapes"),
        # a prefetcher holds one batch more, and the optimizer makes its state: once
        pytest.param((10, 13), SAME, LEAST, 0, id="once"),
        pytest.param((10, 100, 101, 102), SAME, LEAST, 0, id="not steady"),
        pytest.param((10, 13, 16, 21), SAME, LEAST, 3, id="steady"),
    ],
)
def test_growth_is_the_smallest_of_steady_differences_that_are_all_growth(
    alive, shapes, least, kept
):
    assert bytes_kept(list(map(Reading, alive, shapes)), least) == kept


def growth_of(run_trial, keeps, script=SCRIPT):
    return run_trial(script, argv=(keeps,), device="imaginary").report["growth"]


@pytest.mark.parametrize(
    ("keeps", "of_each"), [("predictions", OUTPUT), ("numbers", 512), ("nothing", None)]
)
def test_predictions_kept_on_the_card_are_growth_of_the_evaluation_and_cycles_are_not(
    run_trial, keeps, of_each
):
    growth = growth_of(run_trial, keeps)
    assert growth.pop("train", 0) <= 512, "a sum of losses is a number for each step, if that"
    assert growth == ({"eval": of_each, "eval_seen": 4, "eval_length": 125} if of_each else {})


def test_what_training_left_over_does_not_hide_what_an_evaluation_keeps(run_trial):
    """The last outputs of training are larger than those of the evaluation, and are gone after its
    first batch.
    """
    script = SCRIPT.replace("torch.ones(96, 64), 8)", "torch.ones(96, 64), 32)").replace(
        "prediction = m", "out = prediction = m"
    )
    assert growth_of(run_trial, "predictions", script)["eval"] == OUTPUT


def test_outputs_kept_in_training_are_growth_of_each_step(run_trial):
    assert OUTPUT <= growth_of(run_trial, "outputs")["train"] <= OUTPUT + 8192


PREFETCHER = """
class Ahead:
    def __init__(self, loader):
        self.loader, self.next = loader, None
    def __iter__(self):
        ready = None
        for x in self.loader:
            self.next, x = x.cuda(), self.next
            if x is not None:
                yield x
        yield self.next
"""


@pytest.mark.parametrize("keeps", ["nothing", "predictions"])
def test_a_prefetcher_that_holds_a_batch_ahead_is_no_growth(run_trial, keeps):
    script = SCRIPT.replace("model = ", PREFETCHER + "model = ", 1).replace(
        "in DataLoader(torch.ones(1000, 64), 8)", "in Ahead(DataLoader(torch.ones(1000, 64), 8))"
    )
    assert growth_of(run_trial, keeps, script).get("eval", 0) == (
        OUTPUT if keeps == "predictions" else 0
    )


FROZEN = """
import torch
from torch.utils.data import DataLoader
encoder, head = torch.nn.Linear(64, 4096).cuda(), torch.nn.Linear(4096, 8).cuda()
optimizer = torch.optim.AdamW(head.parameters())
for epoch in range(3):
    head.train(); encoder.eval(); kept = []
    for x in DataLoader(torch.ones(256, 64), 8):
        kept.append(encoder(x.cuda()).detach())
        head(kept[-1]).mean().backward(); optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize("ahead", [False, True])
def test_a_frozen_encoder_within_training_is_no_evaluation(run_trial, ahead):
    batches = "DataLoader(torch.ones(256, 64), 8)"
    script = PREFETCHER + FROZEN.replace(batches, f"Ahead({batches})") if ahead else FROZEN
    report = run_trial(script, device="imaginary").report
    assert "eval" not in report["growth"] and "eval" not in report["phases"]
    assert [one["role"] for one in report["loaders"]] == ["train"] and report["steps"] >= 4
