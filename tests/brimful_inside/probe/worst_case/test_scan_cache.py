"""What one trial's scans saw is of use to the later trials of a session, where their first samples agree, and never else."""

import json
import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful_inside.probe.worst_case import scan_cache as scan_cache_module
from brimful_inside.probe.worst_case.scan import FIRST, order_of, scan
from brimful_inside.probe.worst_case.scan_cache import (
    MAX_TOTALS,
    ScanCache,
    encode,
    read,
)

lengths_of_samples = st.lists(st.integers(0, 600), min_size=1, max_size=200)
in_one_folder = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Counted:
    """Texts of given lengths, that counts which of them it was asked for."""

    def __init__(self, lengths):
        self.lengths = list(lengths)
        self.asked = []

    def __getitem__(self, index):
        self.asked.append(index)
        return "x" * self.lengths[index]

    def look(self, scans, totals_needed=True):
        return scans.scan(self, len(self.lengths), totals_needed)


class OtherKind(Counted):
    pass


def file_in(folder):
    (path,) = folder.glob("scans-*.jsonl")
    return str(path)


@pytest.fixture
def trial(tmp_path):
    """trial() makes the folder of a trial, empty."""
    count = iter(range(10_000))

    def make():
        folder = tmp_path / f"trial-{next(count):03d}"
        folder.mkdir()
        return folder

    return make


@in_one_folder
@given(lengths_of_samples, st.booleans())
def test_a_later_trial_knows_what_a_scan_of_its_own_would_show_and_looks_at_the_first_samples_and_the_largest(
    trial, lengths, totals
):
    first = trial()
    own = Counted(lengths).look(ScanCache(str(first)), totals)
    data = Counted(lengths)
    later = trial()
    seen = data.look(ScanCache(str(later), [file_in(first)]), totals)
    assert seen == own._replace(trial=first.name, totals=own.totals if totals else {})
    assert list(seen.totals) == list(own.totals)[: len(seen.totals)]
    assert data.asked == [*list(order_of(len(lengths)))[:FIRST], *(at for _, _, at in own.extremes.values())]
    assert list(later.iterdir()) == [], "what was taken over is not written again"


@in_one_folder
@given(lengths_of_samples, st.data())
def test_a_data_set_of_which_any_of_the_first_samples_changed_is_scanned_anew(trial, lengths, data):
    first, later = trial(), trial()
    Counted(lengths).look(ScanCache(str(first)))
    changed = list(lengths)
    place = data.draw(st.sampled_from(list(order_of(len(lengths)))[:FIRST]))
    changed[place] += 1
    now = Counted(changed)
    seen = now.look(ScanCache(str(later), [file_in(first)]))
    assert seen == scan(Counted(changed), len(changed)) and seen.trial is None
    assert now.asked == list(order_of(len(changed))), "samples that were looked at are not asked for twice"
    assert [one._replace(trial=None) for _, one in read(file_in(later))] == [seen], "the trial after this one is trial"


@in_one_folder
@given(st.integers(FIRST + 1, 400), st.data())
def test_a_data_set_whose_largest_sample_is_another_now_is_scanned_anew(trial, count, data):
    """As of a random split: the first samples are alike, and the one that counts went elsewhere."""
    first, places = trial(), st.sampled_from(list(order_of(count))[FIRST:])
    before, now = Counted([4] * count), Counted([4] * count)
    before.lengths[data.draw(places)] = 90
    now.lengths[data.draw(places)] = data.draw(st.sampled_from([90, 95]))
    before.look(ScanCache(str(first)))
    seen = now.look(ScanCache(str(trial()), [file_in(first)]))
    assert seen._replace(trial=None) == scan(Counted(now.lengths), count)
    assert (seen.trial == first.name) == (before.lengths == now.lengths)


def test_of_very_many_dimensions_a_few_are_compared(trial):
    class Tagged(Counted):
        def __getitem__(self, index):
            super().__getitem__(index)
            return {f"n{index}": "x" * 9}

    first, data = trial(), Tagged([0] * 500)
    Tagged([0] * 500).look(ScanCache(str(first)))
    assert data.look(ScanCache(str(trial()), [file_in(first)])).trial == first.name and len(data.asked) == 2 * FIRST


def test_samples_made_at_random_are_scanned_anew_in_each_trial(trial):
    source = random.Random(1)

    class Made(Counted):
        def __getitem__(self, index):
            self.asked.append(index)
            return "x" * source.randint(1, 500)

    first = trial()
    Made([0] * 300).look(ScanCache(str(first)))
    made = Made([0] * 300)
    assert made.look(ScanCache(str(trial()), [file_in(first)])).trial is None and len(made.asked) == 300


def test_a_scan_that_time_ended_is_taken_over_too(trial, monkeypatch):
    first = trial()
    monkeypatch.setattr(scan_cache_module, "scan", lambda *args, **more: scan(*args, first_s=0.0, **more))
    own = Counted([7] * 5000).look(ScanCache(str(first)))
    monkeypatch.undo()
    seen = Counted([7] * 5000).look(ScanCache(str(trial()), [file_in(first)]))
    assert own.scanned == FIRST and seen._replace(trial=None) == own


def test_looking_again_never_takes_more_samples_than_a_scan_without_time(trial):
    """Where samples take a second each a scan looks at the first ones whatever it takes, and a comparison at the same."""
    first = trial()
    Counted(range(1000)).look(ScanCache(str(first)))
    ((_, known),) = read(file_in(first))
    alone, same, other = Counted(range(1000)), Counted(range(1000)), Counted(range(1, 1001))
    for data, earlier in ((alone, ()), (same, [known]), (other, [known])):
        scan(data, 1000, first_s=0.0, all_s=0.0, earlier=earlier)
    assert len(alone.asked) == len(same.asked) == len(other.asked) == FIRST
    few = Counted(range(1000))
    assert scan(few, 1000, all_s=0.0, earlier=[known._replace(first=known.first[:5])]).trial == first.name
    assert len(few.asked) == 5


@pytest.mark.parametrize("other", ["length", "type", "rank", "place"])
def test_a_scan_is_of_one_loader_of_one_rank(trial, monkeypatch, other):
    first = trial()
    Counted([3] * 100).look(ScanCache(str(first)))
    later = ScanCache(str(trial()), [file_in(first)])
    data = (OtherKind if other == "type" else Counted)([3] * (101 if other == "length" else 100))
    if other == "rank":
        monkeypatch.setenv("RANK", "1")
    if other == "place":
        assert Counted([3] * 100).look(later).trial == first.name
    seen = data.look(later)
    assert seen.trial is None and len(data.asked) == len(data.lengths)


def test_loaders_over_data_sets_of_one_type_and_length_are_told_apart_by_their_order(trial):
    first = trial()
    scans = ScanCache(str(first))
    training, evaluation = [4] * 500, [4] * 500
    training[313], evaluation[77] = 90, 95
    for lengths in (training, evaluation):
        Counted(lengths).look(scans)
    later = ScanCache(str(trial()), [file_in(first)])
    for lengths, largest in ((training, 313), (evaluation, 77)):
        seen = Counted(lengths).look(later)
        assert seen.trial == first.name and seen.largest[0] == largest


def test_a_scan_that_failed_counts_in_the_order_of_loaders(trial):
    class MayFail(Counted):
        fails = False

        def __getitem__(self, index):
            if self.fails and len(self.asked) == 40:
                raise OSError("no such image")
            return super().__getitem__(index)

    first = trial()
    scans, broken = ScanCache(str(first)), MayFail(range(100))
    broken.fails = True
    with pytest.raises(OSError, match="image"):
        broken.look(scans)
    MayFail(range(100)).look(scans)
    assert [key[1] for key, _ in read(file_in(first))] == [1]


def test_of_several_earlier_scans_the_newest_that_agrees_is_taken(trial):
    folders = [trial() for _ in range(4)]
    lengths = [[4] * 400 for _ in range(4)]
    lengths[0][313] = lengths[1][313] = 90
    lengths[2][77] = 95
    lengths[3][0] = 5
    for folder, one in zip(folders, lengths, strict=True):
        Counted(one).look(ScanCache(str(folder)))
    files = [file_in(folder) for folder in folders]
    for wanted, found in ((0, 1), (1, 1), (2, 2), (3, 3)):
        assert Counted(lengths[wanted]).look(ScanCache(str(trial()), files)).trial == folders[found].name


def test_more_totals_than_can_be_passed_on_are_known_to_plain_loaders_by_the_largest_alone(trial, monkeypatch):
    monkeypatch.setattr(scan_cache_module, "MAX_TOTALS", 99)
    assert MAX_TOTALS == 200_000
    for_batches, plain = trial(), trial()
    Counted(range(100)).look(ScanCache(str(for_batches)), totals_needed=True)
    assert list(for_batches.iterdir()) == []
    Counted(range(100)).look(ScanCache(str(plain)), totals_needed=False)
    again, needy = Counted(range(100)), Counted(range(100))  # of 0 to 99 letters: the last one is looked at as the largest
    assert again.look(ScanCache(str(trial()), [file_in(plain)]), totals_needed=False).largest == list(range(99, -1, -1))
    assert len(again.asked) == FIRST + 1
    assert needy.look(ScanCache(str(trial()), [file_in(plain)]), totals_needed=True).totals == {n: n for n in range(100)}


def test_a_file_does_not_grow_beyond_its_bound(trial, monkeypatch):
    folder = trial()
    scans = ScanCache(str(folder))
    Counted(range(100)).look(scans)
    size = os.path.getsize(file_in(folder))
    monkeypatch.setattr(scan_cache_module, "MAX_FILE_BYTES", 3 * size)
    for _ in range(10):
        Counted(range(100)).look(scans)
    assert os.path.getsize(file_in(folder)) == 3 * size
    assert len(list(read(file_in(folder)))) == 3


def test_without_a_folder_to_write_to_the_scan_goes_on(tmp_path):
    assert Counted(range(50)).look(ScanCache(str(tmp_path / "gone"))).scanned == 50


def lines(count):
    """Lines of scans as they are written, each of another loader."""
    kinds = [("plain", True), ("plain", False), ("with 31 samples", True)]
    for number in range(count):
        length = 31 if number % 3 == 2 else 60
        seen = scan(Counted([n * (number + 1) for n in range(length)]), length)
        yield encode((0, number, kinds[number % 3][0], length), seen, kinds[number % 3][1])


@in_one_folder
@given(st.data())
def test_of_a_file_that_was_cut_off_at_any_byte_the_whole_lines_are_read(tmp_path, data):
    written = list(lines(3))
    whole = b"".join(written)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "scans-1.jsonl"
    path.write_bytes(whole[:cut])
    ends = [sum(map(len, written[: n + 1])) for n in range(3)]
    found = [key[1] for key, _ in read(str(path))]
    assert found == [n for n, end in enumerate(ends) if cut >= end - 1], "a line is whole without the end of line"


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@in_one_folder
@given(st.sampled_from(["key", "scanned", "extremes", "largest", "first", "totals", "missing", "all"]), NONSENSE, st.binary())
def test_what_is_no_scan_is_as_if_it_were_not_there(tmp_path, what, nonsense, garbage):
    row = json.loads(next(lines(1)))
    if what == "missing":
        del row[sorted(row)[len(garbage) % len(row)]]
    elif what == "all":
        row = nonsense
    else:
        row[what] = nonsense
    path = tmp_path / "scans-1.jsonl"
    path.write_bytes(garbage + b"\n" + json.dumps(row).encode() + b"\n" + next(lines(1)))
    found = list(read(str(path)))
    assert found[-1:] == read_alone(tmp_path), "a line that is whole is read, whatever stands before it"
    for (_, _, _, length), one in found[:-1]:  # sizes that are possible: the first samples will tell
        assert one.length == length and all(0 <= index < length for index in one.largest)


def read_alone(folder):
    path = folder / "alone" / "scans-1.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(next(lines(1)))
    return [(key, one._replace(trial=folder.name)) for key, one in read(str(path))]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("largest", [60] + [0] * 59),
        ("largest", [0]),
        ("largest", [-1] * 60),
        ("totals", [1]),
        ("totals", [True] * 60),
        ("scanned", 61),
        ("scanned", 0),
        ("first", []),
        ("extremes", {"0": [0, 59, 60]}),
        ("extremes", {"0": [0, 59]}),
        ("key", [0, 0, "plain"]),
    ],
)
def test_a_scan_with_indices_beyond_the_data_set_or_too_few_numbers_is_none(tmp_path, field, value):
    path = tmp_path / "scans-1.jsonl"
    path.write_bytes(next(lines(1)))
    assert len(list(read(str(path)))) == 1
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    assert list(read(str(path))) == []


def test_a_file_that_is_not_there_or_is_a_folder_is_as_none(tmp_path):
    assert list(read(str(tmp_path))) == list(read(str(tmp_path / "gone"))) == []
    assert Counted(range(40)).look(ScanCache(str(tmp_path), [str(tmp_path), str(tmp_path / "gone")])).scanned == 40


def test_another_part_of_the_same_data_is_scanned_anew():
    """A split without a seed: its first samples may agree and a long one be among the others."""
    import torch
    from torch.utils.data import Subset, random_split

    from brimful_inside.probe.worst_case.scan_cache import _kind_of

    whole = list(range(100))
    first, same, other = (Subset(whole, chosen) for chosen in ([3, 1], torch.tensor([3, 1]), [3, 2]))
    assert _kind_of(first) == _kind_of(same) != _kind_of(other)
    assert _kind_of(Subset(first, [0])) != _kind_of(Subset(other, [0]))
    drawn = [_kind_of(random_split(whole, [50, 50], torch.Generator().manual_seed(seed))[0]) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert _kind_of(whole) == "builtins.list"
