"""Candidates are ordered by what the collate_fn makes of each, where that says more than the
samples' own sizes.
"""

import functools

import pytest
import torch

from brimful_inside.probe.worst_case import scan as scan_module
from brimful_inside.probe.worst_case.scan import CHECKED, FEW, by_collated, scan, worst_indices

TEXTS = ["a" * 60, "a " * 10, "b " * 25, *("c" * n for n in range(30, 50))]


def words(samples):
    return torch.ones(len(samples), max(len(text.split()) for text in samples))


def ordered(collate, samples=TEXTS):
    before = scan(samples, len(samples))
    return before, by_collated(before, samples.__getitem__, collate, {})


@pytest.fixture
def counting():
    """A collate_fn, and the sizes of the batches that it was called for."""
    calls = []
    return lambda samples: calls.append(len(samples)) or words(samples), calls


def test_texts_are_ordered_by_words_and_the_scan_stays_to_be_recognised():
    before, after = ordered(words)
    assert worst_indices(before)[0] == 0 and worst_indices(after)[:2] == [2, 1]
    assert after.collated["1"] == (25, 2) and (after.extremes, after.first) == (
        before.extremes,
        before.first,
    )
    assert sorted(after.largest) == sorted(before.largest)


def test_the_sample_that_has_most_of_each_dimension_comes_first():
    pairs = [("a " * 40, "b"), ("a", "b " * 50), *(("a " * 30, "b " * 30),) * 30]
    _, after = ordered(lambda some: tuple(words([one[n] for one in some]) for n in (0, 1)), pairs)
    assert worst_indices(after)[:3] == [1, 0, 2]


def test_tensors_that_are_padded_have_been_measured_already():
    asked = []

    def pad(samples):
        asked.append(len(samples))
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    before, after = ordered(pad, [torch.ones(n) for n in range(1, 100)])
    assert after is before and len(asked) == 2 * CHECKED


def test_texts_of_equal_length_may_vary_in_words_and_few_of_them_are_asked_for(counting):
    collate, calls = counting
    before, after = ordered(collate, ["ab cd e", "a b c d", *["abcdefg"] * 2 * FEW])
    assert not before.varies and after.varies and worst_indices(after)[:2] == [1, 0]
    assert len(calls) == FEW + 2 * CHECKED


@pytest.mark.parametrize(
    ("time_s", "samples"),
    [(scan_module.COLLATE_S, ["abc"] * 40), (-1.0, TEXTS)],
    ids=["what does not vary", "without time"],
)
def test_the_order_stays_that_of_the_samples(monkeypatch, time_s, samples):
    monkeypatch.setattr(scan_module, "COLLATE_S", time_s)
    before, after = ordered(words, samples)
    assert after is before and after.varies == (samples is TEXTS)


@pytest.mark.parametrize("number", [1, 2, 10, 25])
def test_a_collate_fn_that_fails_at_any_of_the_samples_leaves_the_scan(number):
    calls = iter(range(1, 1000))

    def fails(samples):
        assert next(calls) < number
        return words(samples)

    before, after = ordered(fails)
    assert after is before


def test_a_collate_fn_that_empties_a_sample_or_counts_batches_was_not_called_for_the_script():
    class Counts:
        batches = 0

        def __call__(self, samples):
            self.batches += 1
            return words([sample.pop("text") for sample in samples])

    collate, samples = Counts(), [{"text": text} for text in TEXTS]
    _, after = ordered(collate, samples)
    assert (
        worst_indices(after)[0] == 2
        and collate.batches == 0
        and [one["text"] for one in samples] == TEXTS
    )


class CountsInside:
    """A collate_fn that an object inside it, or a method of it, serves."""

    def __init__(self, **held):
        self.calls = []
        self.held = held

    def __call__(self, samples):
        return self.collate(samples)

    def collate(self, samples):
        self.calls.append(len(samples))
        return words(samples)


def test_what_a_collate_fn_holds_is_copied_with_it():
    collate = CountsInside()
    _, after = ordered(collate)
    assert worst_indices(after)[0] == 2 and collate.calls == []


@pytest.mark.parametrize("hold", ["method", "partial of a method", "module inside"])
def test_a_method_and_what_holds_a_model_are_not_called_and_the_model_is_not_copied(
    monkeypatch, hold
):
    copies = []
    monkeypatch.setattr(torch.nn.Linear, "__deepcopy__", lambda *_: copies.append(1), raising=False)
    owner = CountsInside(**({"inner": [torch.nn.Linear(1, 1)]} if hold == "module inside" else {}))
    collate = {"method": owner.collate, "module inside": owner}.get(
        hold, functools.partial(owner.collate)
    )
    before, after = ordered(collate)
    assert after is before and owner.calls == copies == []


def test_a_collate_fn_that_empties_what_a_sample_holds_leaves_the_samples():
    samples = [(["start"], {"text": text}) for text in TEXTS]

    def empties(some):
        for tags, _ in some:
            tags.append("end")
        return words([fields.pop("text") for _, fields in some])

    _, after = ordered(empties, samples)
    assert worst_indices(after)[0] == 2 and samples == [
        (["start"], {"text": text}) for text in TEXTS
    ]


@pytest.mark.parametrize("kept", [True, False])
def test_a_scan_that_is_not_kept_for_later_trials_asks_for_few_samples(kept, counting):
    texts, (collate, calls) = [f"{n:04d} " * (n % 7 + 1) for n in range(2 * FEW)], counting
    before = scan(texts, len(texts))._replace(repeatable=kept)
    assert by_collated(before, texts.__getitem__, collate, {}).collated["1"][0] == 7
    assert len(calls) - 2 * CHECKED == (len(texts) if kept else FEW)
