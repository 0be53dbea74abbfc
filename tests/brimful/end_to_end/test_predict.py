"""`predict` from end to end: the object it prints, and the traps that a peak can hide in."""

import pytest

from brimful.show.headline import headline
from brimful.units import GIB
from brimful.values import Verdict
from tests.brimful.end_to_end.helper import TRAINING, TRAPS, brimful, python, script

WIDE = TRAINING.replace("256", "65536")


def test_what_does_not_fit_is_answered_with_the_whole_object_and_exit_code_3(tmp_path):
    found = brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "3GiB",
        "--json",
        *python(script(tmp_path, WIDE, samples=4096), "--batch-size", 4000),
        code=3,
    ).json
    assert found.keys() >= {
        "schema",
        "verdict",
        "batch_size",
        "peak",
        "phases",
        "largest_batch_size",
        "gpu",
        "seconds",
    }
    assert (found["verdict"], found["batch_size"]) == ("does_not_fit", 4000)
    peak = found["peak"]
    low, high = peak["device_interval_bytes"]
    assert peak["allocated_bytes"] <= peak["reserved_bytes"] <= peak["device_bytes"]
    assert low <= peak["device_bytes"] <= high
    assert peak["device_bytes"] - peak["reserved_bytes"] == found["gpu"]["context_bytes"]["value"]
    assert found["gpu"]["total_bytes"]["value"] == 3 * GIB
    # Three tensors of (4000, 65536) floats live at the top of the backward pass: what relu gave,
    # its gradient, and that of its input; and parameters and gradients of 65536 x 66 floats each.
    assert peak["allocated_bytes"] == pytest.approx(
        3 * 4000 * 65536 * 4 + 2 * 65536 * 66 * 4, rel=0.02
    )
    assert 1 <= found["largest_batch_size"] < 4000
    assert "train" in found["phases"]
    where, parts = found["breakdown"], found["breakdown"]["parts"]
    assert sum(parts.values()) == peak["device_bytes"]
    assert parts["parameters"] == pytest.approx(65536 * 66 * 4, rel=0.02)
    assert parts["activations"] == pytest.approx(4000 * 65536 * 4, rel=0.02), (
        "relu's result; what it read is its own now"
    )
    assert (where["phase"], where["moment"]["during"]) == ("train", "backward")
    assert where["moment"]["where"].endswith("in <module>: loss.backward()")
    assert {share["module"] for share in where["modules"]} <= {"0", "1", "2", "Sequential (itself)"}
    *_, last = found["what_if"]["remedies"]
    assert (
        last["code"].startswith("accumulation")
        and last["source"] == "estimate"
        and last["verdict"] == "fits"
    )
    assert last["device_bytes"] <= found["budget"]["bytes"]


COUNTED = """
import argparse, os
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()

class Texts(Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        os.write(1, b"asked\\n")
        return torch.ones(10 + index * 37 % 91)

def pad(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for texts in DataLoader(Texts(), args.batch_size, shuffle=True, collate_fn=pad):
    (texts.cuda() * weight).mean().backward()
    optimizer.step()
"""
# what is compared with an earlier scan (and the largest), and what batches are made of at most
FIRST, DISTINCT = 32, 256


def test_a_later_trial_reads_the_first_samples_and_at_those_of_its_own_batches(tmp_path):
    done = brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "16GiB",
        "--json",
        *python(script(tmp_path, COUNTED), "--batch-size", 8),
        code=0,
    )
    assert "in all 2000 samples" in done.json["worst_batch"]["what"]
    # Those with the batches as the script draws them read what it reads.
    results = [result for result in done.record.trials if not result.trial.as_drawn]
    folders = [done.trial.parent / result.folder for result in results]
    first, *later = [(folder / "stdout.txt").read_text().count("asked") for folder in folders]
    assert (
        first >= 2000
        and len(later) >= 2
        and all(FIRST < count <= FIRST + 1 + DISTINCT for count in later)
    )
    worst = [result.reports[0].worst_batch for result in results]
    assert [one.scanned_in for one in worst] == [None] + ["trial-001"] * len(later)
    assert len({(one.scanned, one.what, tuple(one.indices)) for one in worst}) == 1
    assert [len(list(folder.glob("scans-*.jsonl"))) for folder in folders] == [1] + [0] * len(later)


def test_an_evaluation_that_takes_more_than_the_training_gives_the_peak(tmp_path):
    done = brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "16GiB",
        "--json",
        "--batch-size-from",
        "none",
        *python(TRAPS / "evaluation_hungry.py"),
        code=0,
    )
    phases = {name: peak["allocated_bytes"] for name, peak in done.json["phases"].items()}
    assert phases["eval"] >= 50 * phases["train"]
    assert done.json["peak"]["allocated_bytes"] == phases["eval"]
    # (4096, 4096, 8) distances, in floats, and their square
    assert phases["eval"] >= 2 * 4096 * 4096 * 8 * 4


def test_sentences_of_5_to_500_tokens_are_predicted_at_500(tmp_path):
    real = brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "16GiB",
        "--json",
        *python(TRAPS / "sentences.py"),
        code=0,
    )
    assert real.json["worst_batch"]["varies"]
    path = script(
        tmp_path,
        (TRAPS / "sentences.py")
        .read_text()
        .replace("torch.randint(SHORTEST, 100, (count,)).tolist()", "[LONGEST] * count")
        .replace("lengths[0], lengths[1::200] = SHORTEST", "lengths[0], lengths[1::200] = LONGEST"),
    )
    longest = brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "16GiB",
        "--json",
        *python(path),
        home=tmp_path / "home2",
        code=0,
    )
    assert real.json["peak"]["reserved_bytes"] == longest.json["peak"]["reserved_bytes"]
    assert real.json["peak"]["allocated_bytes"] == pytest.approx(
        longest.json["peak"]["allocated_bytes"], rel=0.01
    )
    assert real.json["peak"]["device_bytes"] < 16 * GIB


TOKENIZED = """
import argparse, random
import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()

class Texts(Dataset):
    def __init__(self):
        self.texts = ["w " * random.Random(n).randint(5, 90) + "c" * REST for n in range(400)]
        self.next = iter(random.sample(range(400), 400) * 1000)
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return self.texts[WHICH][:256]

def pad(texts):
    tokens = [torch.ones(len(text.split())) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True)

weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for batch in DataLoader(Texts(), args.batch_size, shuffle=True, collate_fn=pad):
    print("length", batch.shape[1])
    (batch.cuda() * weight).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("which", "rest"),
    [("index", 100), ("index", 300), ("next(self.next)", 100)],
    ids=["varying", "equal", "index ignored"],
)
def test_batches_of_texts_have_the_same_tokens_at_each_size_even_where_no_index_is_obeyed(
    tmp_path, which, rest
):
    done = brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "16GiB",
        "--no-what-if",
        "--max-batch-size",
        16,
        "--json",
        *python(
            script(tmp_path, TOKENIZED.replace("WHICH", which).replace("REST", str(rest))),
            "--batch-size",
            8,
        ),
        code=0,
    )
    lengths = {}
    for result in done.record.trials:
        printed = (done.trial.parent / result.folder / "stdout.txt").read_text().splitlines()
        lengths.setdefault(result.trial.as_drawn, []).append(
            {line for line in printed if line.startswith("length")}
        )
    assert len(lengths[False]) >= 2
    assert all(of_trial == {"length 91"} for of_trial in lengths[False])
    assert any(len(of_trial) > 1 for of_trial in lengths[True])


CONCATENATED = """
import argparse, random, torch
from torch.utils.data import DataLoader, Dataset
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
args = parser.parse_args()

class Graphs(Dataset):
    def __len__(self):
        return 2000
    def __getitem__(self, index):
        return torch.ones(random.Random(index).randint(20, 400), 64)

model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for nodes in DataLoader(Graphs(), args.batch_size, shuffle=True, collate_fn=torch.cat):
    model(nodes.cuda()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_of_concatenated_samples_the_largest_batch_drawn_counts_and_not_one_of_the_largest_samples(
    tmp_path,
):
    command = python(script(tmp_path, CONCATENATED), "--batch-size", "{batch_size}")
    done = brimful(tmp_path, "predict", "--gpu-memory", "1GiB", "--details", *command, code=0)
    prediction = done.record.prediction
    alone, peak = prediction.largest_batches_peak, prediction.peak
    assert prediction.verdict == Verdict.FITS
    assert peak.device_interval_bytes[1] <= prediction.budget.bytes
    assert peak.allocated_bytes < 0.9 * alone.allocated_bytes
    assert prediction.worst_batch.drawn > 1000
    assert "batches drawn at random" in prediction.worst_batch.what
    assert sum(prediction.breakdown.parts.values()) == peak.device_bytes


SELECTED = """
import torch

rows = torch.randn(1 << 20, 256, device="cuda")
weight = torch.zeros(256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    picked = rows[rows[:, 0] > 0] if MASKED else rows
    (picked * weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_values_decide_opens_the_interval_downwards_and_is_said_to_be_the_most(tmp_path):
    def predicted(source, code=0):
        words = "--gpu-memory", "6GiB", "--no-what-if", "--json"
        command = python(script(tmp_path, source))
        done = brimful(tmp_path, "predict", *words, *command, code=code)
        return done.json, headline(done.record).sentence

    masked = SELECTED.replace("MASKED", "True")
    answer, sentence = predicted(masked)
    peak = answer["peak"]
    low, high = peak["device_interval_bytes"]
    # what the mask picks, its product, and the index: 2 GiB of the 3 that are held
    assert peak["at_most_bytes"] == pytest.approx(2 * GIB, rel=0.1)
    assert low <= peak["device_bytes"] - 2 * GIB < peak["device_bytes"] <= high
    assert "predicted peak at most " in sentence
    answer, sentence = predicted(SELECTED.replace("MASKED", "False"))
    assert answer["peak"]["at_most_bytes"] == 0 and "at most" not in sentence
    answer, sentence = predicted(masked.replace("1 << 20", "3 << 20"), code=3)
    assert answer["verdict"] == "tight", "it fits if the mask picks little"


PADDED = """
import argparse, random, torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
random.seed(0)
data = [torch.zeros(random.randint(16, 512), dtype=torch.long) for _ in range(1000)]
collate = lambda batch: nn.utils.rnn.pad_sequence(batch, batch_first=True)
model = nn.Sequential(nn.Embedding(100, 64), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
model = model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for tokens in DataLoader(data, batch_size=args.batch_size, shuffle=True, collate_fn=collate):
    model(tokens.cuda()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_with_uneven_batches_the_table_has_an_epoch_near_one_that_is_known_and_else_the_least(
    tmp_path,
):
    command = python(script(tmp_path, PADDED), "--batch-size", 24)
    options = ("--gpu", "t4", "--max-batch-size", 100, "--sizes", "5,24,30", "--json")
    answer = brimful(tmp_path, "predict", *options, *command, code=0).json
    few, asked, more = answer["rows"]
    assert few["is_least"] and few["traced"] and few["verdict"] == "fits"
    assert not asked["is_least"] and not more["is_least"] and not more["traced"]
    assert asked["peak_bytes"]["value"] == answer["peak"]["device_bytes"]
    alone = answer["largest_batches_peak"]["device_bytes"]
    assert few["peak_bytes"]["value"] <= alone and few["allocated_bytes"] < asked["allocated_bytes"]
