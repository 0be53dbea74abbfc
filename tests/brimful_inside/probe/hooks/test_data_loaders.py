"""Which batches went into which step."""

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from brimful_inside.probe.hooks.data_loaders import Consumption
from brimful_inside.probe.passes import EVAL, TRAIN, Loader, Pass, samples_in
from brimful_inside.simulator.trace import decode
from tests.brimful_inside.helper import CARD

LOADER = DataLoader(TensorDataset(torch.zeros(10)), batch_size=4)


def iteration(serial=1, role=TRAIN):
    made = Pass(Loader(LOADER), serial)
    made.role = role
    return made


def give(consumption, one, count, samples=4):
    for _ in range(count):
        one.given += 1
        consumption.given(one, samples)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_accumulation_is_counted(accumulation):
    c, one = Consumption(), iteration()
    for _ in range(3):
        for _ in range(accumulation):
            give(c, one, 1)
            c.worked_on()
        c.step()
    assert c.by_step() == ([accumulation] * 3, [4 * accumulation] * 3)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_batch_drawn_ahead_belongs_to_the_next_step(accumulation):
    """accelerate draws one batch ahead; the Trainer of transformers draws all batches of a step
    before it works on them.
    """
    c, one = Consumption(), iteration()
    give(c, one, accumulation + 1)
    c.worked_on()
    c.step()
    for _ in range(2):
        give(c, one, accumulation)
        c.step()
    give(c, one, accumulation - 1)
    one.ended = True
    c.step()
    assert c.by_step()[0] == [accumulation] * 4


def test_an_epoch_of_one_batch_has_nothing_ahead():
    c = Consumption()
    for serial in (1, 2, 3):
        one = iteration(serial)
        give(c, one, 1, samples=7)
        c.worked_on()
        c.step()
        one.ended = True
    assert c.by_step() == ([1, 1, 1], [7, 7, 7])


def test_batches_of_an_evaluation_belong_to_no_step():
    c, train, evaluation = Consumption(), iteration(1), iteration(2, EVAL)
    for _ in range(2):
        give(c, train, 1)
        c.step()
        give(c, evaluation, 5)
    assert c.by_step() == ([1, 1], [4, 4])


def test_two_loaders_side_by_side_count_all_samples_and_the_most_batches():
    c, labelled, unlabelled = Consumption(), iteration(1), iteration(2)
    for _ in range(2):
        give(c, labelled, 1, samples=4)
        give(c, unlabelled, 1, samples=28)
        c.step()
    assert c.by_step() == ([1, 1], [32, 32])
    without_a_batch = Consumption()
    without_a_batch.step()
    assert without_a_batch.by_step() == ([0], [None])


def test_a_batch_that_zip_drew_and_dropped_at_the_end_of_an_epoch_belongs_to_no_step():
    c, labelled, unlabelled = Consumption(), Loader(LOADER), Loader(LOADER)
    for epoch in range(2):
        passes = Pass(labelled, 2 * epoch), Pass(unlabelled, 2 * epoch + 1)
        for _ in range(2):
            for one in passes:
                give(c, one, 1)
            c.worked_on()
            c.step()
        give(c, passes[0], 1)
    assert c.by_step() == ([1] * 4, [8] * 4)


def test_a_batch_that_was_worked_on_before_the_end_of_an_epoch_counts_in_the_next_ones_step():
    c, loader = Consumption(), Loader(LOADER)
    give(c, Pass(loader, 1), 1)
    c.worked_on()
    give(c, Pass(loader, 2), 2)
    c.step()
    assert c.by_step() == ([2], [12])


@pytest.mark.parametrize(
    ("index", "batch", "iterable", "samples"),
    [
        ([3, 4, 5], {"input_ids": torch.zeros(1, 512)}, False, 3),
        (7, {"input_ids": torch.zeros(1, 512)}, False, 1),
        ([None] * 8, torch.zeros(8, 2), True, 8),
        ([None] * 8, torch.zeros(5, 2), True, 5),  # the last, short batch
        ([None] * 8, torch.zeros(512), True, 8),  # packed: the batch size is the better guess
        (None, torch.zeros(6, 2), True, 6),
    ],
)
def test_samples_are_counted_by_indices_and_else_by_the_first_dimension(
    index, batch, iterable, samples
):
    assert samples_in(index, batch, iterable) == samples


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 10


def test_the_facts_of_a_loader_are_its_settings():
    facts = Loader(
        DataLoader(TensorDataset(torch.zeros(10)), batch_size=4, shuffle=True, drop_last=True)
    ).facts
    assert facts == {
        "batch_size": 4,
        "dataset_length": 10,
        "length": 2,
        "sampler": "RandomSampler",
        "sampler_samples": 10,
        "drop_last": True,
        "workers": 0,
        "prefetch_factor": None,
        "pin_memory": False,
        "places": [],
    }
    stream = DataLoader(Stream(), batch_size=4)
    facts = Loader(stream).facts
    assert (facts["dataset_length"], facts["length"], facts["batch_size"]) == (None, 3, 4)
    assert stream._IterableDataset_len_called is None  # asking is not to be noticed
    own = BatchSampler(SequentialSampler(range(10)), 5, False)
    assert (
        Loader(DataLoader(TensorDataset(torch.zeros(10)), batch_sampler=own)).facts["batch_size"]
        == 5
    )


class SeedableRandomSampler(RandomSampler):
    """As Accelerate's."""


class OfAScript(list):
    """With a name of PyTorch's."""


OfAScript.__name__ = "RandomSampler"


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (OfAScript(range(10)), "RandomSampler"),
        (RandomSampler(range(10)), "RandomSampler"),
        (SeedableRandomSampler(range(10)), "RandomSampler"),
        (RandomSampler(range(10), replacement=True), "RandomSampler with replacement"),
        (SequentialSampler(range(10)), "SequentialSampler"),
    ],
)
def test_a_samplers_name_says_whether_it_draws_each_sample_once(sampler, name):
    data = TensorDataset(torch.zeros(10))
    assert Loader(DataLoader(data, batch_size=4, sampler=sampler)).facts["sampler"] == name


EACH_EPOCH = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def rows():
    return TensorDataset(torch.randn(16, 4), torch.zeros(16, dtype=torch.long))

def loss(data):
    for x, y in DataLoader(data, batch_size=8):
        yield torch.nn.functional.cross_entropy(model(x), y)

train, val = rows(), rows()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    for one in loss({train}):
        optimizer.zero_grad(); one.backward(); optimizer.step()
    {without}
        for one in loss({val}):
            one.item()
"""
GRAD_OFF, GRAD_ON = "with torch.no_grad():", "if True:"


@pytest.mark.parametrize(
    ("train", "val", "without"),
    [
        ("train", "val", GRAD_OFF),
        ("train", "val", GRAD_ON),
        ("train", "train", GRAD_OFF),
        ("rows()", "rows()", GRAD_OFF),
    ],
    ids=["two data sets", "and gradients", "the same", "made anew"],
)
def test_a_loader_that_is_gone_is_no_other_one_of_the_same_settings(run_trial, train, val, without):
    seen = run_trial(EACH_EPOCH.format(train=train, val=val, without=without))
    first, second = seen.report["loaders"]
    assert (first["role"], first["iterations"] > 1) == ("train", True), (
        "one made in each epoch is one"
    )
    assert second["iterations"] == (1 if without == GRAD_OFF else first["iterations"])
    assert without == GRAD_ON or second["role"] == "eval"


BESIDE_EACH_OTHER = """
import torch
from itertools import cycle
from torch.utils.data import DataLoader, TensorDataset

def loader(samples, batch_size):
    return DataLoader(TensorDataset(torch.randn(samples, 4)), batch_size, drop_last=True)

labelled, unlabelled, val = loader(12, 2), loader(48, 14), loader(8, 4)
next(iter(val))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(5):
    for (x,), (u,) in zip(cycle(labelled), unlabelled):
        optimizer.zero_grad(); model(torch.cat([x, u])).sum().backward(); optimizer.step()
"""


def test_a_loader_that_is_read_beside_the_one_that_is_trained_on_is_no_evaluation(run_trial):
    seen = run_trial(BESIDE_EACH_OTHER)
    roles = {loader["batch_size"]: loader["role"] for loader in seen.report["loaders"]}
    assert roles == {2: "beside", 14: "train", 4: "eval"}
    assert seen.report["samples_per_step"][1:] == [16] * (seen.report["steps"] - 1)


ENDLESS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class Endless(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = None
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        if self.iterator is None:
            self.iterator = self._get_iterator()
        for _ in range(len(self)):
            yield next(self.iterator)

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
train, val = Endless(data, batch_size=16, shuffle=True), Endless(data, batch_size=32)
for epoch in range(5):
    for x, y in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        print("evaluated", len([model(x) for x, _ in val]))
    model.train()
"""


@pytest.mark.parametrize(
    ("batch_size", "evaluations"), [(16, 1), (64, 3)], ids=["an epoch of 4 steps", "of one step"]
)
def test_a_loader_that_keeps_one_endless_iterator_is_seen_cut_and_evaluated(
    run_trial, batch_size, evaluations
):
    """As ultralytics and timm have it: a subclass whose `__iter__` draws from an iterator of all
    epochs.
    """
    seen = run_trial(ENDLESS.replace("batch_size=16", f"batch_size={batch_size}"))
    assert seen.exit_code == 0 and not seen.failures, seen.stderr
    assert seen.stdout.splitlines() == ["evaluated 2"] * evaluations
    train, val = seen.report["loaders"]
    settings = {"batch_size": batch_size, "dataset_length": 64, "length": 64 // batch_size}
    assert train == {**train, "role": "train", **settings}
    assert (val["role"], val["iterations"]) == ("eval", evaluations)
    assert seen.report["steps"] == 4 and "eval" in seen.report["phases"]


TORCHS_ITERATOR = """
import itertools
import torch
from torch.utils.data.dataloader import _DatasetKind, _SingleProcessDataLoaderIter

class Owner:
    dataset, n, bs, drop_last = list(range(125)), 125, 6, True

class Own:
    d = Owner()
    _IterableDataset_len_called, _auto_collation, drop_last, in_order = None, False, False, True
    _index_sampler, generator, prefetch_factor = itertools.count(), None, 2
    _dataset_kind = _DatasetKind.Iterable
    pin_memory, num_workers, timeout, persistent_workers, pin_memory_device = False, 0, 0, False, ""
    worker_init_fn = multiprocessing_context = None
    collate_fn = staticmethod(lambda batch: batch)
    def _get_shared_seed(self):
        return None
    @property
    def dataset(self):
        return self
    def __iter__(self):
        return (torch.randn(6, 4) for _ in range(20))

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x in _SingleProcessDataLoaderIter(Own()):
    optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
"""


def test_a_loader_that_is_none_but_uses_torchs_iterators_is_seen(run_trial):
    """As fastai has it."""
    seen = run_trial(TORCHS_ITERATOR)
    (loader,) = seen.report["loaders"]
    settings = {"batch_size": 6, "dataset_length": 125, "drop_last": True}
    assert loader == {**loader, "role": "train", **settings}
    assert loader["batches"][0]["samples"] == 6
    assert seen.report["steps"] == 4, "it ended early"


def test_a_subclass_that_fails_by_itself_still_fails(run_trial):
    (failure,) = run_trial(
        ENDLESS.replace("for _ in range(len(self)):", "for _ in iter([next(iter(()))]):")
    ).failures
    assert failure["type"] == "RuntimeError" and "StopIteration" in failure["message"]


WORKERS = """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        return (torch.ones(4) for _ in range(40))

def begins(number):
    print("a worker begins", flush=True)

loader = DataLoader(Stream(), batch_size=4, num_workers=1, worker_init_fn=begins)
model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(12):
    for x in loader:
        x += 1
        assert x.shape == (4, 4) and x.max() == 2, "a batch that the script changed was given again"
        optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()
"""


OWN_ITERATORS = """
class Streaming(DataLoader):
    def _get_iterator(self):
        return torch.utils.data.dataloader._MultiProcessingDataLoaderIter(self)

loader = Streaming("""


@pytest.mark.parametrize(
    "makes",
    ["loader = DataLoader(", OWN_ITERATORS],
    ids=["torch's", "a subclass with its own iterators"],
)
def test_once_a_trial_has_its_steps_later_passes_give_a_batch_again_and_start_no_workers(
    run_trial, makes
):
    seen = run_trial(WORKERS.replace("loader = DataLoader(", makes), device="imaginary")
    assert seen.exit_code == 0 and not seen.failures, seen.stderr
    assert seen.stdout.count("a worker begins") == 1, "of twelve passes the first"
    (loader,) = seen.report["loaders"]
    assert (loader["iterations"], loader["batches_seen"], loader["samples_seen"]) == (12, 15, 60)
    assert len(loader["batches"]) == 4, "what is given again says nothing of what repeats"


def test_a_real_devices_loader_starts_its_workers_at_each_pass(run_trial):
    assert run_trial(WORKERS.replace(".cuda()", "")).stdout.count("a worker begins") == 12


LONG_EVALUATION = """
import torch
from torch.utils.data import DataLoader

def ahead(loader):
    batches = iter(loader)
    current = next(batches)
    while current is not None:
        sent = current.cuda()
        current = next(batches, None)
        yield sent

model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train, val = DataLoader(torch.ones(64, 4), 8), DataLoader(torch.ones(64, 4), 8)
for epoch in range(3):
    for x in train:
        optimizer.zero_grad(); model(x.cuda()).sum().backward(); optimizer.step()
    model.eval()
    with torch.no_grad():
        for x in ahead(val):
            print("evaluates", flush=True)
            y = model(x.cuda())
            for _ in range(50_000):
                y.add_(1)
    print("goes on", flush=True)
    model.train()
"""


@pytest.mark.parametrize(
    ("draws", "goes_on"), [("ahead(val)", False), ("val", True)], ids=["ahead", "one by one"]
)
def test_of_an_evaluation_that_takes_long_one_batch_is_seen_also_where_one_is_drawn_ahead(
    run_trial, draws, goes_on
):
    seen = run_trial(LONG_EVALUATION.replace("ahead(val)", draws), device="imaginary")
    assert seen.exit_code == 0 and not seen.failures, seen.stderr
    assert seen.stdout.split("\n")[:-1] == ["evaluates"] + ["goes on"] * goes_on
    assert (
        "eval" in seen.report["phases"]
        and any("its first batch" in note for note in seen.report["notes"]) is not goes_on
    )


OUTSIDE = """
import torch
from torch.utils.data import DataLoader

def plain(loader):
    for batch in loader:
        yield batch.cuda()

def ahead(loader):
    batches = iter(loader)
    current = next(batches)
    while current is not None:
        sent = current.cuda()
        current = next(batches, None)
        yield sent

def sample():
    with torch.no_grad():
        for _ in range(7):
            weights @ weights

def evaluate(most=None):
    model.eval()
    with torch.no_grad():
        for number, x in enumerate(DRAW(val)):
            if number == most:
                break
            model(x)
    model.train()

weights = torch.randn(16, 16).cuda()
model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train, val = DataLoader(torch.ones(40, 4), 8), DataLoader(torch.ones(24, 4), 8)
for epoch in range(EPOCHS):
    for step, x in enumerate(DRAW(train)):
        WITHIN
        optimizer.zero_grad(); model(x).sum().backward(); optimizer.step()
    AFTER
"""


def outside(seen):
    return decode((seen.folder / seen.report["trace_file"]).read_text().splitlines()).outside


RATES = {"bandwidth_bytes_per_s": 1e12, "flops": {"fp32": 1e13}}


@pytest.mark.parametrize("draw", ["plain", "ahead"])
@pytest.mark.parametrize(
    ("epochs", "within", "after", "between", "evaluates"),
    [
        (3, "", "sample()", 7, False),
        (3, "", "evaluate()", 0, True),
        (3, "", "sample(); evaluate()", 7, True),
        (3, "", "pass", 0, False),
        (1, "", "evaluate(); sample()", 0, True),  # what follows the last epoch is of no epoch
        (3, "if step == 2: evaluate()", "pass", 0, True),
        (3, "sample()", "pass", 0, False),  # of the training itself
        (
            3,
            "",
            "evaluate(1); [sample() for _ in range(9)]",
            9 * 7 + 1,
            False,
        ),  # broken off: anything may have followed
        (
            3,
            "model.train()",
            "model.eval(); sample()",
            7,
            False,
        ),  # in the evaluation's mode when the next epoch begins
        (3, "model.train()", "evaluate(); model.eval(); sample()", 7, True),
    ],
)
def test_what_runs_in_evaluations_and_between_two_epochs_is_in_the_trace(
    run_trial, draw, epochs, within, after, between, evaluates
):
    text = (
        OUTSIDE.replace("DRAW", draw)
        .replace("EPOCHS", str(epochs))
        .replace("WITHIN", within)
        .replace("AFTER", after)
    )
    seen = run_trial(text, device="imaginary", card={**CARD, **RATES}, trace=True, steps=3)
    assert seen.exit_code == 0 and not seen.failures, seen.stderr
    works = {work.name: work for work in outside(seen)}
    products = {
        name: sum(times for times, kernel in work.kernels if "mm" in kernel.op)
        for name, work in works.items()
    }
    if (
        draw == "ahead" and evaluates and "between" in works
    ):  # the evaluation's last batch is worked on after its end
        products["between"] -= works["between"].amount
    assert products.get("between", 0) == (between * works["between"].amount if between else 0)
    assert ("eval" in works) == evaluates
    if evaluates:
        assert works["eval"].amount == 8 * products["eval"] > 0, "a product for each batch of eight"


def test_a_teacher_that_goes_first_is_no_evaluation(run_trial):
    text = (
        OUTSIDE.replace("DRAW", "plain")
        .replace("EPOCHS", "3")
        .replace("WITHIN", "with torch.no_grad(): teacher(x)")
        .replace("AFTER", "pass")
        .replace("optimizer =", "teacher = model; optimizer =")
    )
    seen = run_trial(text, device="imaginary", card={**CARD, **RATES}, trace=True, steps=3)
    assert seen.exit_code == 0 and seen.report["loaders"][0]["role"] == "train", seen.stderr
    assert [work.name for work in outside(seen) if work.kernels] == []
