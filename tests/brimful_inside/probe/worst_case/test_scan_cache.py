"""What one trial's scans found serves the later trials of a session, where their first samples
agree, and never else.
"""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, random_split

from brimful_inside.probe.worst_case import scan_cache as scan_cache_module
from brimful_inside.probe.worst_case.scan import ASKED_AGAIN, FIRST, order_of, scan, worst_indices
from brimful_inside.probe.worst_case.scan_cache import MAX_TOTALS, ScanCache, _kind_of, encode, read

lengths_of_samples = st.lists(st.integers(0, 600), min_size=1, max_size=200)
in_one_folder = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Counted:
    """Texts of given lengths, that keeps which of them were read."""

    def __init__(self, lengths):
        self.lengths, self.asked = list(lengths), []

    def __getitem__(self, index):
        self.asked.append(index)
        return "x" * self.lengths[index]

    def scanned_by(self, scans, totals_needed=True):
        return scans.scan(self, len(self.lengths), totals_needed)[0]


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
def test_a_later_trial_knows_what_its_own_scan_would_show_by_the_first_samples_and_the_largest(
    trial, lengths, totals
):
    first, later = trial(), trial()
    own = Counted(lengths).scanned_by(ScanCache(str(first)), totals)
    data = Counted(lengths)
    seen = data.scanned_by(ScanCache(str(later), [file_in(first)]), totals)
    assert seen == own._replace(trial=first.name, totals=own.totals)
    assert list(seen.totals) == list(own.totals)[: len(seen.totals)]
    assert data.asked == [
        *list(order_of(len(lengths)))[:FIRST],
        *(at for _, _, at in own.extremes.values()),
    ]
    assert list(later.iterdir()) == [], "what was taken over is not written again"


@in_one_folder
@given(lengths_of_samples, st.data())
def test_a_data_set_of_which_any_of_the_first_samples_changed_is_scanned_anew(trial, lengths, data):
    first, later = trial(), trial()
    Counted(lengths).scanned_by(ScanCache(str(first)))
    changed = list(lengths)
    place = data.draw(st.sampled_from(list(order_of(len(lengths)))[:FIRST]))
    changed[place] += 1
    now = Counted(changed)
    seen = now.scanned_by(ScanCache(str(later), [file_in(first)]))
    assert seen == scan(Counted(changed), len(changed)) and seen.trial is None
    again = now.asked[len(changed) :]
    assert now.asked[: len(changed)] == list(order_of(len(changed))), "no sample is read twice"
    assert again == (worst_indices(seen)[:ASKED_AGAIN] if seen.varies else []), (
        "but some of the largest"
    )
    assert [one._replace(trial=None) for _, one in read(file_in(later))] == [seen], (
        "the trial after this one reads it"
    )


@in_one_folder
@given(st.integers(FIRST + 1, 400), st.data())
def test_a_data_set_whose_largest_sample_is_another_now_is_scanned_anew(trial, count, data):
    """As of a random split: the first samples are alike, and the one that counts went elsewhere."""
    first, places = trial(), st.sampled_from(list(order_of(count))[FIRST:])
    before, now = Counted([4] * count), Counted([4] * count)
    before.lengths[data.draw(places)] = 90
    now.lengths[data.draw(places)] = data.draw(st.sampled_from([90, 95]))
    before.scanned_by(ScanCache(str(first)))
    seen = now.scanned_by(ScanCache(str(trial()), [file_in(first)]))
    assert seen._replace(trial=None) == scan(Counted(now.lengths), count)
    assert (seen.trial == first.name) == (before.lengths == now.lengths)


def test_scanning_again_never_takes_more_samples_than_a_scan_without_time(trial):
    """Where samples take a second each a scan reads the first ones whatever it takes, and a
    comparison at the same.
    """
    first = trial()
    Counted(range(1000)).scanned_by(ScanCache(str(first)))
    ((_, known),) = read(file_in(first))
    alone, same, other = Counted(range(1000)), Counted(range(1000)), Counted(range(1, 1001))
    for data, earlier in ((alone, ()), (same, [known]), (other, [known])):
        scan(data, 1000, first_s=0.0, all_s=0.0, earlier=earlier)
    assert len(alone.asked) == len(same.asked) == len(other.asked) == FIRST
    few = Counted(range(1000))
    seen = scan(few, 1000, all_s=0.0, earlier=[known._replace(first=known.first[:5])])
    assert (seen.trial, len(few.asked)) == (first.name, 5)


@pytest.mark.parametrize("other", ["length", "type", "rank"])
def test_a_scan_is_of_one_loader_of_one_rank(trial, monkeypatch, other):
    first = trial()
    Counted([3] * 100).scanned_by(ScanCache(str(first)))
    later = ScanCache(str(trial()), [file_in(first)])
    kind = type("OtherKind", (Counted,), {}) if other == "type" else Counted
    data = kind([3] * (101 if other == "length" else 100))
    if other == "rank":
        monkeypatch.setenv("RANK", "1")
    assert data.scanned_by(later).trial is None and len(data.asked) == len(data.lengths)


def test_loaders_over_data_sets_of_one_type_and_length_differ_by_their_order(trial):
    first = trial()
    scans = ScanCache(str(first))
    training, evaluation = [4] * 500, [4] * 500
    training[313], evaluation[77] = 90, 95
    for lengths in (training, evaluation):
        Counted(lengths).scanned_by(scans)
    later = ScanCache(str(trial()), [file_in(first)])
    for lengths, largest in ((training, 313), (evaluation, 77)):
        seen = Counted(lengths).scanned_by(later)
        assert seen.trial == first.name and seen.largest[0] == largest


def test_of_several_earlier_scans_the_newest_that_agrees_is_taken(trial):
    folders = [trial() for _ in range(4)]
    lengths = [[4] * 400 for _ in range(4)]
    for number, place, length in ((0, 313, 90), (1, 313, 90), (2, 77, 95), (3, 0, 5)):
        lengths[number][place] = length
    for folder, one in zip(folders, lengths, strict=True):
        Counted(one).scanned_by(ScanCache(str(folder)))
    files = [file_in(folder) for folder in folders]
    for wanted, found in ((0, 1), (1, 1), (2, 2), (3, 3)):
        assert (
            Counted(lengths[wanted]).scanned_by(ScanCache(str(trial()), files)).trial
            == folders[found].name
        )


def test_more_totals_than_can_be_passed_on_are_known_to_plain_loaders_by_the_largest_alone(
    trial, monkeypatch
):
    monkeypatch.setattr(scan_cache_module, "MAX_TOTALS", 99)
    assert MAX_TOTALS == 200_000
    plain = trial()
    Counted(range(100)).scanned_by(ScanCache(str(plain)), totals_needed=False)
    again, needy = (
        Counted(range(100)),
        Counted(range(100)),
    )  # of 0 to 99 letters: the last one is read as the largest
    later = [ScanCache(str(trial()), [file_in(plain)]) for _ in range(2)]
    assert again.scanned_by(later[0], totals_needed=False).largest == list(range(99, -1, -1))
    assert len(again.asked) == FIRST + 1
    assert needy.scanned_by(later[1], totals_needed=True).totals == {n: n for n in range(100)}


def test_a_file_does_not_grow_beyond_its_bound(trial, monkeypatch):
    folder = trial()
    scans = ScanCache(str(folder))
    Counted(range(100)).scanned_by(scans)
    size = os.path.getsize(file_in(folder))
    monkeypatch.setattr(scan_cache_module, "MAX_FILE_BYTES", 3 * size)
    for _ in range(10):
        Counted(range(100)).scanned_by(scans)
    assert os.path.getsize(file_in(folder)) == 3 * size
    assert len(list(read(file_in(folder)))) == 3


@in_one_folder
@given(st.data())
def test_of_a_file_that_was_cut_off_at_any_byte_the_whole_lines_are_read(tmp_path, data):
    written = []
    for number, length in enumerate((60, 31, 60)):
        found = scan(Counted([n * (number + 1) for n in range(length)]), length)
        written.append(encode((0, number, "kind", length), found))
    cut = data.draw(st.integers(0, sum(map(len, written))))
    path = tmp_path / "scans-1.jsonl"
    path.write_bytes(b"".join(written)[:cut])
    ends = [sum(map(len, written[: n + 1])) for n in range(3)]
    found = [key[1] for key, _ in read(str(path))]
    assert found == [n for n, end in enumerate(ends) if cut >= end - 1], (
        "a line is whole without the end of line"
    )


def test_a_file_that_is_not_there_or_is_a_folder_is_as_none_and_so_is_a_folder_to_write_to(
    tmp_path,
):
    gone = str(tmp_path / "gone")
    assert list(read(str(tmp_path))) == list(read(gone)) == []
    assert Counted(range(40)).scanned_by(ScanCache(gone, [str(tmp_path), gone])).scanned == 40


def test_another_part_of_the_same_data_is_scanned_anew():
    """A split without a seed: its first samples may agree and a long one be among the others."""
    whole = list(range(100))
    first, same, other = (
        Subset(whole, chosen) for chosen in ([3, 1], torch.tensor([3, 1]), [3, 2])
    )
    assert _kind_of(first) == _kind_of(same) != _kind_of(other)
    assert _kind_of(Subset(first, [0])) != _kind_of(Subset(other, [0]))
    drawn = [
        _kind_of(random_split(whole, [50, 50], torch.Generator().manual_seed(seed))[0])
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert _kind_of(whole) == "builtins.list"


@pytest.mark.parametrize("drawn_anew", [False, True])
def test_a_collate_fn_that_holds_the_data_set_does_not_copy_its_samples(trial, drawn_anew):
    """As PyTorch Geometric's does."""

    class Texts:
        def __init__(self):
            self.asked, self.texts = 0, ["a " * 10, *("c" * n for n in range(1, 90)), "b " * 40]

        def __getitem__(self, index):
            self.asked += 1
            return self.texts[index] + ("." * (self.asked % 7) if drawn_anew else "")

        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    data = Texts()

    class Collate:
        def __init__(self):
            self.dataset = data

        def __call__(self, samples):
            return torch.ones(len(samples), max(len(text.split()) for text in samples))

    scans = ScanCache(str(trial()))
    known, _ = scans.scan(data, len(data.texts), False, Collate(), keeps=True)
    assert known.repeatable is not drawn_anew and known.collated, "by words, not by characters"
    assert scans.scan(data, len(data.texts), False, Collate())[0].scanned
