"""A trial meets the worst batch, on a CPU through the loader's own workers; a later one by what an
earlier one found.
"""

import pytest

from brimful_inside.probe.worst_case.scan import ASKED_AGAIN, CHECKED

HEAD = """
import random, torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

class Sentences(Dataset):
    def __init__(self, count=300, longest=500):
        source = random.Random(0)
        self.lengths = [source.randint(5, 100) for _ in range(count)]
        self.lengths[count // 3] = longest
        self.opened_in = None
    def __len__(self):
        return len(self.lengths)
    def __getitem__(self, i):
        import os
        if self.opened_in is None:
            self.opened_in = os.getpid()
        assert self.opened_in == os.getpid(), "opened in another process"
        return torch.ones(self.lengths[i]), i

def pad(samples):
    padded = torch.nn.utils.rnn.pad_sequence([x for x, _ in samples], batch_first=True)
    return padded, torch.tensor([i for _, i in samples])

weight = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.SGD([weight], lr=0.1)
def train(loader):
    for x, i in loader:
        (x * weight).mean().backward(); optimizer.step()
        print(tuple(x.shape), len(set(i.tolist())), flush=True)
"""

BY_BUDGET = """
class Budget(Sampler):
    def __init__(self, data): self.data = data
    def __len__(self): return 20
    def __iter__(self):
        batch = []
        for i, n in enumerate(self.data.lengths):
            if batch and max(self.data.lengths[j] for j in [*batch, i]) * (len(batch) + 1) > 900:
                yield batch
                batch = []
            batch.append(i)
"""


def test_every_batch_is_made_of_the_largest_samples_by_the_workers(run_trial):
    trial = run_trial(
        HEAD + "train(DataLoader(Sentences(), 8, shuffle=True, num_workers=2, collate_fn=pad))\n",
        worst_batch=True,
    )
    assert trial.stdout.splitlines() == ["(8, 500) 8"] * 4
    worst = trial.report["worst_batch"]
    assert (worst["scanned"], worst["dataset_length"], worst["varies"]) == (300, 300, True)
    assert worst["indices"][0] == 100 and "from 5 to 500" in worst["what"]
    assert trial.failures == []


AS_DRAWN = (
    HEAD
    + """
def concatenate(samples):
    return torch.cat([x for x, _ in samples]), torch.tensor([i for _, i in samples])

data = Sentences(300, 101)
train(DataLoader(data, 8, shuffle=SHUFFLE, num_workers=2, collate_fn=concatenate))
loader = DataLoader(data, 8, collate_fn=concatenate)
with torch.no_grad():
    for x, _ in loader:
        print("evaluation", len(x), flush=True)
        break
"""
)


def test_of_batches_drawn_at_random_two_are_the_largest_of_many_and_all_others_as_drawn(run_trial):
    trial = run_trial(AS_DRAWN.replace("SHUFFLE", "True"), worst_batch=True, largest_at=4, steps=9)
    lines = trial.stdout.splitlines()
    lengths = [int(line[1 : line.index(",")]) for line in lines if line.startswith("(")]
    largest = lengths[4:6]
    assert len(lengths) == 10
    # A batch of eight has 424 words in the mean, and 792 of the largest samples.
    assert all(640 < length < 790 for length in largest)
    assert max(lengths[:4] + lengths[6:]) < min(largest)
    assert trial.report["worst_batch"]["drawn"] == 10_000
    evaluated = [int(line.split()[1]) for line in lines if line.startswith("evaluation")]
    assert evaluated == [max(evaluated)] and evaluated[0] > max(largest)


SHARE = """
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from torch.utils.data import BatchSampler, RandomSampler
def share(data, size):
    plain = BatchSampler(RandomSampler(data), size, False)
    return WRAPPED
"""
SHARES = [
    ("BatchSamplerShard(plain, 2, 1)", 8),
    ("BatchSamplerShard(plain, 2, 1, split_batches=True)", 4),
    ("SkipBatchSampler(BatchSamplerShard(plain, 2, 0), 1)", 8),
]


@pytest.mark.parametrize(
    ("wrapped", "size"), SHARES, ids=["whole batches", "parts of them", "later ones"]
)
def test_a_ranks_share_of_batches_by_accelerate_is_drawn_at_random(run_trial, wrapped, size):
    loader = "data, batch_sampler=share(data, 8), num_workers=2"
    script = AS_DRAWN.replace("data, 8, shuffle=SHUFFLE, num_workers=2", loader)
    script = script.replace("data = ", SHARE.replace("WRAPPED", wrapped) + "data = ")
    trial = run_trial(script, worst_batch=True, largest_at=2, steps=5)
    lines = [line for line in trial.stdout.splitlines() if line.startswith("(")]
    lengths = [int(line[1 : line.index(",")]) for line in lines]
    assert len(lengths) == 6 and max(lengths[:2] + lengths[4:]) < min(lengths[2:4])
    # At most 101 words a sample.
    assert size * 80 < max(lengths) < size * 101
    assert trial.report["worst_batch"]["drawn"] == 10_000


def test_a_loader_that_does_not_draw_at_random_keeps_its_batches(run_trial):
    trial = run_trial(AS_DRAWN.replace("SHUFFLE", "False"), worst_batch=True, largest_at=2, steps=4)
    kept = run_trial(AS_DRAWN.replace("SHUFFLE", "False"), worst_batch=False, steps=4)
    assert trial.stdout.splitlines()[:5] == kept.stdout.splitlines()[:5]
    assert trial.report["worst_batch"]["drawn"] == 0


def test_of_a_batch_sampler_with_a_budget_the_largest_batch_is_taken(run_trial):
    trial = run_trial(
        HEAD
        + BY_BUDGET
        + """
data = Sentences()
sizes = [len(b) * max(data.lengths[i] for i in b) for b in Budget(data)]
print(max(sizes), sum(map(len, Budget(data))) / len(sizes))
train(DataLoader(data, batch_sampler=Budget(data), collate_fn=pad))
""",
        worst_batch=True,
    )
    of_budget, *shapes = trial.stdout.splitlines()
    largest, mean = map(float, of_budget.split())
    rows, width = eval(shapes[0].rsplit(" ", 1)[0])
    assert rows * width == largest and len(set(shapes[:1] + shapes[3:])) == 1
    worst = trial.report["worst_batch"]
    assert "batch sampler" in worst["what"] and worst["samples"] == rows != mean
    assert worst["mean_samples"] == pytest.approx(mean)


STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.ones(4), i) for i in range(64)])
train(DataLoader(Stream(), 8))
"""
KEYED = """
class Keyed(Sentences):
    def __getitem__(self, key):
        return super().__getitem__(int(key[1:]))
train(DataLoader(Keyed(longest=50), 8, sampler=["k%d" % i for i in range(300)], collate_fn=pad))
"""
EQUAL = "train(DataLoader([(torch.ones(4), i) for i in range(64)], 8))"


@pytest.mark.parametrize(
    ("script", "why"),
    [(STREAM, "iterable"), (KEYED, "gave an error"), (EQUAL, "all 64 samples have the same shape")],
    ids=["stream", "keyed", "equal"],
)
def test_a_loader_that_cannot_be_scanned_or_does_not_vary_is_left_alone_and_says_so(
    run_trial, script, why
):
    trial = run_trial(HEAD + script, worst_batch=True)
    worst = trial.report["worst_batch"]
    assert trial.exit_code == 0 and trial.report["samples_per_step"] == [8] * 4
    assert why in worst["what"] and not worst["varies"] and worst["indices"] == []


def test_on_an_imaginary_card_batches_are_made_without_workers_at_any_size(run_trial):
    trial = run_trial(
        HEAD.replace(
            "torch.nn.Parameter(torch.ones(()))",
            'torch.nn.Parameter(torch.ones((), device="cuda"))',
        ).replace("(x * weight)", '(x.to("cuda") * weight)')
        + "train(DataLoader(Sentences(), 250, num_workers=2, collate_fn=pad))\n",
        worst_batch=True,
        device="imaginary",
        trace=True,
    )
    assert [line.split(")")[0] for line in trial.stdout.splitlines()] == ["(250, 500"] * 4
    assert [process["role"] for process in trial.processes] == ["rank"]
    assert (
        trial.report["samples_per_step"] == [250] * 4
        and trial.report["step_s"] == []
        and trial.report["losses"] == []
    )
    assert (trial.folder / trial.report["trace_file"]).exists()
    assert trial.report["phases"]["train"]["allocated_bytes"] >= 250 * 500 * 4


COUNTED = (
    HEAD.replace(
        "def __getitem__(self, i):",
        "def __getitem__(self, i):\n        print('read', i, flush=True)",
    )
    + """
data = Sentences()
"""
)
PLAIN = COUNTED + "train(DataLoader(data, 8, collate_fn=pad))\n"
BUDGET = (
    COUNTED + BY_BUDGET + "\ntrain(DataLoader(data, batch_sampler=Budget(data), collate_fn=pad))\n"
)


SQUARES = """
class Groups(Sampler):
    def __init__(self, lengths): self.lengths = lengths
    def __len__(self): return 6
    def __iter__(self):
        short = [i for i, n in enumerate(self.lengths) if n < 500]
        return iter([short[:10], short[10:20], [100], short[20:30], short[30:40], short[40:41]])
data = Sentences()
train(DataLoader(data, batch_sampler=Groups(data.lengths), collate_fn=pad))
"""


@pytest.mark.parametrize("device", ["cpu", "imaginary"])
def test_the_batch_of_the_longest_sample_is_tried_beside_the_one_of_most_samples(run_trial, device):
    """Attention's memory grows with the square of a length."""
    script = HEAD + SQUARES
    if device == "imaginary":
        script = script.replace("torch.ones(())", "torch.ones((), device='cuda')")
        script = script.replace("(x * weight)", "(x.cuda() * weight)")
    trial = run_trial(script, worst_batch=True, device=device)
    rows = [int(line.split(",")[0].strip("(")) for line in trial.stdout.splitlines()]
    assert rows == [10, 1, 10, 10], trial.stderr


def read_and_shapes(trial):
    lines = trial.stdout.splitlines()
    return sum(line.startswith("read") for line in lines), [
        line for line in lines if not line.startswith("read")
    ]


@pytest.mark.parametrize("script", [PLAIN, BUDGET], ids=["plain", "budget"])
def test_a_later_trial_reads_a_few_samples_and_its_own_batches_and_makes_the_same(
    run_trial, tmp_path, script
):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    one = run_trial.func(tmp_path / "first", script, worst_batch=True)
    files = [str(path) for path in one.folder.glob("scans-*.jsonl")]
    two = run_trial.func(tmp_path / "second", script, worst_batch=True, scans=files)
    (before, shapes), (after, again) = read_and_shapes(one), read_and_shapes(two)
    assert again == shapes and len(shapes) == 4
    its_own = sum(int(shape[1:].split(",")[0]) for shape in shapes)
    assert before == 300 + ASKED_AGAIN + CHECKED + its_own, (
        "all samples, then some of the largest again"
    )
    assert after == 32 + 1 + its_own, "the first and the largest"
    worst = one.report["worst_batch"]
    assert worst["scanned_in"] is None and worst["varies"]
    assert two.report["worst_batch"] == {**worst, "scanned_in": "trial"}
    assert list(two.folder.glob("scans-*")) == []


IGNORES = """
class Ignores(Sentences):
    order = None
    def __getitem__(self, i):
        if self.order is None:
            self.order = iter(random.Random().sample(range(300), 300) * 1000)
        return super().__getitem__(next(self.order))
data = Ignores()
data[0]
"""
ON_CARD = HEAD.replace(
    "torch.nn.Parameter(torch.ones(()))", 'torch.nn.Parameter(torch.ones((), device="cuda"))'
).replace("(x * weight)", '(x.to("cuda") * weight)')
IMAGINARY = {"worst_batch": True, "device": "imaginary", "trace": True}


def test_of_a_data_set_that_ignores_its_index_batches_are_made_of_the_samples_that_were_measured(
    run_trial,
):
    trial = run_trial(
        ON_CARD + IGNORES + "train(DataLoader(data, 4, collate_fn=pad))\n", **IMAGINARY
    )
    assert trial.stdout.splitlines() == ["(4, 500) 4"] * 4
    assert (
        "every batch is made of the largest; they are kept from the scan"
        in trial.report["worst_batch"]["what"]
    )


def test_where_workers_get_other_samples_it_is_not_said_that_batches_are_of_the_largest(
    run_trial,
):
    trial = run_trial(
        HEAD + IGNORES + "train(DataLoader(data, 4, collate_fn=pad))\n", worst_batch=True
    )
    assert "batches need not be made of the largest" in trial.report["worst_batch"]["what"]
    assert len(trial.stdout.splitlines()) == 4


TEXTS = """
class Texts(Dataset):
    def __len__(self): return 90
    def __getitem__(self, i):
        return "w " * 200 if i % 2 else "w" * (400 + i)
def tokens(texts):
    split = [torch.ones(len(text.split())) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(split, batch_first=True), torch.arange(len(texts))
DEFINED
train(DataLoader(Texts(), BATCH, collate_fn=collate))
"""


@pytest.mark.parametrize("size", [2, 8])
def test_texts_are_ordered_by_the_tokens_that_the_collate_fn_makes_of_them(run_trial, size):
    script = TEXTS.replace("DEFINED", "collate = tokens").replace("BATCH", str(size))
    trial = run_trial(ON_CARD + script, **IMAGINARY)
    assert trial.stdout.splitlines() == [f"({size}, 200) {size}"] * 4
    said = trial.report["worst_batch"]["what"]
    assert "as the collate_fn makes them (dimension 1 of batch[0] up to 200)" in said


FAILS = """
def collate(texts):
    assert len(texts) > 1, "needs pairs"
    return tokens(texts)
"""
RANDOM = """
def collate(texts):
    x, i = tokens(texts)
    return x.repeat(1, random.randint(1, 50)), i
"""
COPIES = """
def collate(texts):
    x, i = tokens(texts)
    return x.cuda(), i
"""


@pytest.mark.parametrize("collate", [FAILS, RANDOM, COPIES], ids=["fails", "random", "on the card"])
def test_a_collate_fn_that_says_nothing_of_one_sample_leaves_the_order_by_characters(
    run_trial, collate
):
    trial = run_trial(
        ON_CARD + TEXTS.replace("DEFINED", collate).replace("BATCH", "4"), **IMAGINARY
    )
    worst = trial.report["worst_batch"]
    assert trial.failures == [] and len(trial.stdout.splitlines()) == 4
    assert (
        worst["what"].endswith("every batch is made of the largest") and worst["indices"][0] == 88
    )


WHOLE_BATCHES = """
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

class Rows(Dataset):
    def __len__(self):
        return 270
    def __getitem__(self, i):
        return torch.ones(len(i), 5) if isinstance(i, list) else torch.ones(5)

weight = torch.nn.Parameter(torch.ones(5).to(DEVICE))
optimizer = torch.optim.SGD([weight], lr=0.1)
data = Rows()
loader = DataLoader(data, sampler=BatchSampler(RandomSampler(data), 32, False), batch_size=None)
for x in loader:
    (x.to(DEVICE) * weight).mean().backward(); optimizer.step()
    print(len(x), flush=True)
"""


@pytest.mark.parametrize("device", ["cpu", "imaginary"])
def test_a_data_set_that_gives_whole_batches_is_counted_in_samples(run_trial, device):
    name = "cuda" if device == "imaginary" else "cpu"
    script = WHOLE_BATCHES.replace("DEVICE", repr(name))
    trial = run_trial(script, device=device, worst_batch=True, trace=device == "imaginary")
    assert (trial.failures, set(trial.stdout.split())) == ([], {"32"})
    loader = trial.report["loaders"][0]
    assert (loader["batch_size"], loader["length"], loader["dataset_length"]) == (32, 9, 270)
    assert (loader["sampler"], loader["sampler_samples"]) == ("RandomSampler", 270)
    assert loader["batches"][0]["samples"] == 32


SHORT_EPOCHS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

weight = torch.nn.Parameter(torch.ones(4).to("cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(6, 4)), 2, shuffle=True)
for epoch in range(4):
    for i, (x,) in enumerate(loader):
        assert i < len(loader)
        (x.to("cuda") * weight).mean().backward()
        if (i + 1) % 2 == 0 or i + 1 == len(loader):
            optimizer.step()
    print(i + 1, "of", len(loader), flush=True)
"""


@pytest.mark.parametrize(
    ("config", "epochs", "batches"),
    [
        ({}, ["8 of 192"], [2, 2, 2]),
        ({"audits": True}, ["3 of 3"] * 2, [2, 1, 2]),
        ({"largest_at": 2}, ["3 of 3"] * 2, [2, 1, 2]),
        ({"largest_at": 2, "see_eval": False}, [], [2, 2, 2]),
    ],
    ids=["a trial of memory", "an audit", "as drawn", "as drawn without evaluation"],
)
def test_no_pass_outlasts_the_length_of_its_loader(run_trial, config, epochs, batches):
    """Where the epoch has fewer steps than the trial, it is a long one from the start; an audit
    goes on with the script's next, and so do batches as they are drawn."""
    trial = run_trial(SHORT_EPOCHS, **config, **IMAGINARY)
    assert trial.failures == [] and trial.stdout.splitlines()[: len(epochs)] == epochs
    assert trial.report["micro_batches_per_step"][:3] == batches


def test_a_pass_over_a_ranks_share_of_batches_by_accelerate_goes_on(run_trial):
    wrapped, size = SHARES[0]
    script = SHORT_EPOCHS.replace("2, shuffle=True", "batch_sampler=share(range(48), 8)")
    script = script.replace("weight =", SHARE.replace("WRAPPED", wrapped) + "weight =", 1)
    script = script.replace("torch.ones(6, 4)", "torch.ones(48, 4)")
    trial = run_trial(script, steps=5, largest_at=2, see_eval=False, **IMAGINARY)
    assert trial.failures == [] and trial.stdout == ""
    assert trial.report["micro_batches_per_step"] == [2] * 6
    assert trial.report["loaders"][0]["batches"][0]["samples"] == size
