"""What a trial leaves out changes no peak and no time: random programs, as trials and run whole."""

import os
import random
from collections import Counter

import pytest

from brimful_inside.imaginary.state.clock import rates_of
from brimful_inside.simulator import roofline
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import decode
from brimful_inside.wire import Card
from tests.brimful_inside.helper import CARD, run_trial

PROGRAMS = int(os.environ.get("BRIMFUL_EXAMPLES", "4"))
SEED = int(os.environ.get("BRIMFUL_SEED", "29"))
TIMED_CARD = {
    **CARD,
    "bandwidth_bytes_per_s": 1.5e12,
    "flops": {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12},
}
RATES = rates_of(Card(**TIMED_CARD))
# Of an evaluation's time by sample, where its last batch is smaller: it launches as many kernels.
TOLERANCE = 0.25
WHOLE = """
import brimful_inside.left_out as rule
rule.ALIKE = rule.ALIKE_OTHERWISE = 10**9
"""
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, {width}), nn.GELU(), nn.Linear({width}, 32))
    def forward(self, x, time=0.0):
        scores = self.body(x + time)
        return {{"loss": scores.mean(), "scores": scores, "most": scores.detach().amax()}}

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
train = DataLoader(TensorDataset(torch.zeros({samples}, 32)), {batch})
held_out = torch.zeros({held_out}, 32)
for epoch in range(2):
    model.train()
    for number, (x,) in enumerate(train, 1):
        out = model(x.cuda())
        for name in {changed}:
            out[name] *= 1
        ((out["loss"] + out["scores"].sum()) / {accumulated}).backward()
        if number % {accumulated} == 0 or number == len(train):
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for x in {evaluation}:
            model(x.cuda())["scores"].argmax(1).cpu()
        x = torch.randn(8, 32, device="cuda")
        for time in range({sampled}):
            x = x - model(x, float(time))["scores"]
"""
EVALUATIONS = {
    "none": "()",
    "of a loader": "DataLoader(held_out, {batch})",
    "by hand": "held_out.split({batch})",
}


def random_program(seed: int) -> dict:
    choose = random.Random(seed)
    batch, accumulated = choose.choice([4, 16, 64]), choose.randint(1, 12)
    rest = choose.choice([0, 1, batch // 2])  # of an uneven last batch
    evaluation = choose.choice(list(EVALUATIONS.values())).format(batch=batch)
    return {
        "batch": batch,
        "accumulated": accumulated,
        "width": choose.choice([64, 512, 2048]),
        "samples": 6 * accumulated * batch + rest,
        "held_out": choose.randint(2, 9) * batch + choose.choice([0, 1, batch // 2]),
        "changed": choose.choice([(), ("loss",), ("scores", "most"), ("loss", "scores", "most")]),
        "evaluation": evaluation,
        "sampled": choose.choice([0, 40, 150]),
    }


def seconds(kernels) -> float:
    """Of kernels, each with how often it ran."""
    return sum(
        times * roofline.kernel_time(kernel, RATES, roofline.DEFAULT).seconds
        for times, kernel in kernels
    )


def shown(folder, script, **config) -> tuple[dict, Counter[Kernel], dict]:
    """(peaks by phase, kernels of the last step, work outside of the training by name)."""
    folder.mkdir()
    trial = run_trial(folder, script, device="imaginary", card=TIMED_CARD, trace=True, **config)
    if trial.exit_code:
        raise RuntimeError(trial.stderr)
    trace = decode((trial.folder / trial.report["trace_file"]).read_text().splitlines())
    peaks = {name: peak["allocated_bytes"] for name, peak in trial.report["phases"].items()}
    return peaks, Counter(trace.runs), {work.name: work for work in trace.outside}


def assert_the_same(folder, program: dict) -> None:
    script = PROGRAM.format(**program)
    peaks, step, outside = shown(folder / "trial", script)
    all_peaks, last_step, all_outside = shown(folder / "whole", WHOLE + script, cut=False)
    if program["samples"] % program["batch"] == 0:
        assert peaks == all_peaks and step == last_step
    else:  # what the last batch of the training leaves alive is smaller there
        left = 4 * 32 * 4 * program["batch"]
        evaluation, whole = peaks.pop("eval", 0), all_peaks.pop("eval", 0)
        assert peaks == all_peaks and whole <= evaluation <= whole + left
    assert outside.keys() == all_outside.keys()
    for name, work in outside.items():
        whole = all_outside[name]
        by_amount, whole_by_amount = (seconds(each.kernels) / each.amount for each in (work, whole))
        exact = name == "between" or program["held_out"] % program["batch"] == 0
        assert by_amount == pytest.approx(whole_by_amount, rel=1e-9 if exact else TOLERANCE)


@pytest.mark.parametrize("seed", range(SEED, SEED + PROGRAMS))
def test_a_trial_shows_the_peaks_and_times_of_the_program_run_whole(tmp_path, seed):
    assert_the_same(tmp_path, random_program(seed))


def test_an_evaluation_whose_later_batches_are_larger_would_be_noticed(tmp_path):
    grows = "[held_out[:2 * size] for size in (4, 4, 4, 2000)]"
    by_loader = {**random_program(SEED), "held_out": 4000, "sampled": 0, "width": 2048}
    by_loader["evaluation"] = f"DataLoader({grows}, batch_size=None)"
    with pytest.raises(AssertionError):
        assert_the_same(tmp_path, by_loader)
