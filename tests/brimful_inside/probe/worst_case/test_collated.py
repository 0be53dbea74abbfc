"""Candidates are ordered by what the collate_fn makes of each, where that says more than the samples' own sizes."""

import pytest
import torch

from brimful_inside.probe.worst_case import collated as collated_module
from brimful_inside.probe.worst_case.collated import CHECKED, by_collated
from brimful_inside.probe.worst_case.scan import scan, worst_indices

TEXTS = ["a" * 60, "a " * 10, "b " * 25, *("c" * n for n in range(30, 50))]


def words(samples):
    return torch.ones(len(samples), max(len(text.split()) for text in samples))


def ordered(collate, samples=TEXTS):
    found = scan(samples, len(samples))
    return found, by_collated(found, samples.__getitem__, collate)


def test_texts_are_ordered_by_words_and_the_scan_stays_to_be_recognised():
    before, after = ordered(words)
    assert worst_indices(before)[0] == 0 and worst_indices(after)[:2] == [2, 1]
    assert after.collated["1"] == (25, 2) and (after.extremes, after.first) == (before.extremes, before.first)
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


def test_texts_of_equal_length_may_vary_in_words():
    before, after = ordered(words, ["ab cd e", "a b c d", *["abcdefg"] * 40])
    assert not before.varies and after.varies and worst_indices(after)[:2] == [1, 0]


def test_what_does_not_vary_is_left():
    before, after = ordered(words, ["abc"] * 40)
    assert after is before and not after.varies


def test_without_time_the_order_is_that_of_the_samples(monkeypatch):
    monkeypatch.setattr(collated_module, "FOR_S", -1.0)
    before, after = ordered(words)
    assert after is before


@pytest.mark.parametrize("number", [1, 2, 10, 25])
def test_a_collate_fn_that_fails_at_any_of_the_samples_leaves_the_scan(number):
    calls = iter(range(1, 1000))

    def fails(samples):
        assert next(calls) < number
        return words(samples)

    before, after = ordered(fails)
    assert after is before


def test_a_collate_fn_that_empties_a_sample_or_counts_its_batches_has_not_been_called_for_the_script():
    class Counts:
        batches = 0

        def __call__(self, samples):
            self.batches += 1
            return words([sample.pop("text") for sample in samples])

    collate, samples = Counts(), [{"text": text} for text in TEXTS]
    _, after = ordered(collate, samples)
    assert worst_indices(after)[0] == 2 and collate.batches == 0 and [one["text"] for one in samples] == TEXTS
