"""What a prediction costs: the arithmetic, and the claim on host memory for a billion parameters,
measured.
"""

import json
import subprocess
import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("torch")

from bench import prediction_cost as bench

MIB = 1 << 20
ROUNDS = [
    bench.Round(6.0, 7.0, 400 * MIB, 2.0, 260 * MIB, bench.Parts(1.0, 2.0, 1.0, 2.0, 1.0)),
    bench.Round(9.0, 9.0, 390 * MIB, 2.0, 250 * MIB, bench.Parts(1.0, 2.0, 3.0, 2.0, 1.0)),
    bench.Round(8.0, 8.0, 380 * MIB, 4.0, 255 * MIB, bench.Parts(1.0, 2.0, 2.5, 2.0, 0.5)),
]
COST = bench.Cost("mlp", ROUNDS, 3, 640)


def with_peak(cost: bench.Cost, peak_bytes: int) -> bench.Cost:
    return replace(cost, rounds=[of._replace(peak_bytes=peak_bytes) for of in cost.rounds])


#: A billion parameters in few layers, so that a step is short.
SCRIPT = """
import argparse, torch
from torch import nn
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
with torch.device("cuda"):
    model = nn.Sequential(*[nn.Linear(16384, 16384) for _ in range(4)], nn.Linear(16384, 1))
assert sum(p.numel() for p in model.parameters()) > 1_000_000_000
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.zeros(64, 16384))
for (batch,) in torch.utils.data.DataLoader(data, args.batch_size):
    loss = model(batch.cuda()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_prediction_is_told_as_a_multiple_of_the_script_in_the_same_round():
    # 3, 4.5 and 2 times; the most of the predictions, the least of the script
    assert (COST.ratio, COST.over_bytes) == (3.0, 150 << 20)


def test_the_seconds_by_the_clock_are_those_of_the_round_in_the_middle_and_make_up_its_whole():
    heads, row = bench.parts_table([COST])
    assert heads.split()[-5:] == list(bench.Parts._fields)
    assert [float(word) for word in row.split()[1:]] == [1.0, 2.0, 2.5, 2.0, 0.5]


def test_a_predictions_parts_are_those_of_its_record_and_of_what_was_seen_meanwhile(
    tmp_path, monkeypatch
):
    now = [0.0]
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    clock = bench.Clock(str(tmp_path))
    clock.look()
    record = tmp_path / "records" / "a prediction"
    (record / "trial-001").mkdir(parents=True)
    (record / "trial-001" / "trial_config.json").write_text("{}")
    now[0] = 1.0
    clock.look()
    (record / "trial-001" / "wire-1.jsonl").write_text('{"event": "torch_imported"}\n')
    now[0] = 3.0
    clock.look()
    trials = [{"entry": "trial", "duration_s": seconds} for seconds in (0.4, 1.0, 2.0)]
    lines = [json.dumps(entry) + "\n" for entry in ({"entry": "opened"}, *trials)]
    (record / "record.jsonl").write_text("".join(lines[:2]) + lines[2][:9])  # as it is written
    now[0] = 3.5
    clock.look()
    (record / "record.jsonl").write_text("".join(lines))
    parts = clock.parts(8.0)
    assert parts == pytest.approx((1.0, 2.0, 0.5, 3.0, 1.5))
    assert sum(parts) == pytest.approx(8.0)


LARGE = replace(COST, name="billion")


@pytest.mark.parametrize(
    ("costs", "holds"),
    [
        ([COST, COST, with_peak(LARGE, 2 << 30)], False),
        ([COST, COST, with_peak(LARGE, 1 << 30)], True),
        ([replace(COST, rounds=[of._replace(processor_s=40.0) for of in ROUNDS])], False),
        ([], True),
    ],
    ids=["more than a gigabyte", "a gigabyte", "40 times", "nothing"],
)
def test_the_limits_are_of_the_median_and_of_the_billion_parameters(costs, holds):
    assert bench.holds(bench.summary(costs)) is holds


def test_the_memory_of_a_process_tree_is_measured_while_it_runs():
    """It holds it until it was looked at twice."""
    hold = "x = bytearray(150 << 20); print('holds', flush=True); input()"
    starts = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}], check=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holding, looks = threading.Event(), []

    def call():
        with subprocess.Popen([sys.executable, "-c", starts], **pipes) as process:
            process.stdout.readline()
            holding.set()
            looked.wait(60)
            process.communicate(b"\n")
        return process.returncode

    looked = threading.Event()

    def look():
        looks.extend([None] * holding.is_set())
        if len(looks) == 2:  # the first may have come after the memory was read
            looked.set()

    others_bytes = sum(map(bench._resident_bytes, psutil.Process().children(recursive=True)))
    code, peak_bytes = bench.watched(call, look)
    # until a child begins its program, Linux shows it with the memory of this process
    most_bytes = 400 * MIB + bench._resident_bytes(psutil.Process())
    assert code == 0 and 150 * MIB <= peak_bytes - others_bytes <= most_bytes


def test_a_billion_parameters_on_the_card_take_no_gigabyte_of_the_host(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    cost = bench.cost_of("billion", [str(path), "--batch-size", "8"], "a100-80gb", rounds=1)
    assert (cost.largest_batch_size or 0) > 8 and cost.trials >= 3 and cost.ratio > 1
    assert cost.rounds[0].script_peak_bytes > 50 * MIB, "torch was imported"
    assert cost.over_bytes < bench.LIMIT_BYTES
