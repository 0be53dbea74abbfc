import errno
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import (
    BrimfulError,
    CheckpointDamaged,
    CheckpointUnreadable,
    DiskFull,
    OtherFormat,
    UsageError,
)
from brimful_train.checkpoints.checkpoint import Disk
from brimful_train.checkpoints.folder import Checkpoints, Kept, best_of, to_remove
from brimful_train.config import CheckpointConfig
from tests.brimful_train.checkpoints.states import same, sealed, training_state


def of(folder, warn=pytest.fail, disk=None, **config):
    return Checkpoints(folder, CheckpointConfig(**config), warn, disk)


def save(checkpoints, step, score=None, best="min"):
    return checkpoints.save(training_state(step), step=step, score=score, best=best)


def steps(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))


def spoil(path, name="state.safetensors"):
    content = bytearray((path / name).read_bytes())
    content[-5] ^= 1
    (path / name).write_bytes(content)


def hidden(folder):
    return sorted(path.name for path in folder.glob(".*"))


# --- what is kept ---


def test_the_newest_is_what_was_saved_last(tmp_path):
    checkpoints = of(tmp_path / "a" / "b")
    assert checkpoints.newest() is None and checkpoints.best() is None
    path = save(checkpoints, 7)
    save(checkpoints, 12)
    again = save(checkpoints, 12)  # the same step can be saved again
    loaded = of(tmp_path / "a" / "b").newest()
    assert loaded.folder == again and loaded.step == 12 and same(loaded.state, training_state(12))
    assert "0000000007" in path.name


@pytest.mark.parametrize(
    "reopened", [False, True]
)  # who comes later knows the scores of those before
@pytest.mark.parametrize(
    ("config", "best", "scores", "left", "best_step"),
    [
        ({"keep_last": 2}, "min", [0.9, 0.3, 0.8, 0.7, math.nan, None], [2, 5, 6], 2),
        ({"keep_last": 1}, "max", [0.3, 0.9, 0.5], [2, 3], 2),
        ({"keep_last": 1, "keep_best": False}, "min", [0.1, 0.9], [2], 2),
    ],
)
def test_the_last_ones_and_the_best_stay(tmp_path, reopened, config, best, scores, left, best_step):
    checkpoints = of(tmp_path, **config)
    for step, score in enumerate(scores, start=1):
        save(of(tmp_path, **config) if reopened else checkpoints, step, score, best)
    assert steps(tmp_path) == left and hidden(tmp_path) == []
    assert of(tmp_path).best().step == best_step and checkpoints.newest().step == left[-1]


def test_a_training_that_begins_anew_in_a_used_folder_has_a_newest_and_a_best_of_its_own(tmp_path):
    for step, score in ((800, None), (900, None), (1000, 0.1)):
        save(of(tmp_path), step, score)
    anew = of(tmp_path, warn=[].append, keep_last=2, resume="no")
    assert anew.resume() is None
    save(anew, 1, 0.8)
    assert of(tmp_path).newest().step == 1 and steps(tmp_path) == [1, 1000]
    for step in (2, 3):
        save(anew, step, 0.9)
    # nothing of the training before
    assert steps(tmp_path) == [1, 2, 3] and of(tmp_path).best().step == 1


@pytest.mark.parametrize("how", ["anew", "from elsewhere"])
def test_a_training_in_the_folder_of_another_warns_of_what_it_will_remove(tmp_path, how):
    warnings, elsewhere = [], save(of(tmp_path / "elsewhere"), 5)
    resume = "no" if how == "anew" else str(elsewhere)
    of(tmp_path / "own", warn=warnings.append, resume=resume).resume()
    assert warnings == []  # nothing is there to be removed
    for step in (900, 1000):
        save(of(tmp_path / "own"), step)
    checkpoints = of(tmp_path / "own", warn=warnings.append, keep_last=2, resume=resume)
    checkpoints.resume()
    assert (
        "holds 2 checkpoints of another training, the newest of step 1,000. THEY WILL BE REMOVED"
        in warnings[0]
    )
    assert "the last 2 and the best stay" in warnings[0] and steps(tmp_path / "own") == [900, 1000]
    for step in (6, 7):
        save(checkpoints, step)
    assert steps(tmp_path / "own") == [6, 7] and len(warnings) == 1


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_a_training_that_goes_on_keeps_its_best_also_after_another_one_began_in_the_folder(
    tmp_path, resume
):
    first = save(of(tmp_path), 10, score=0.5)
    newest = save(of(tmp_path, resume="no"), 1, score=0.1)
    on = of(tmp_path, resume="auto" if resume == "auto" else str(first))
    assert on.resume().folder == (newest if resume == "auto" else first)
    save(on, 11, score=0.7)
    assert of(tmp_path).best().step == (1 if resume == "auto" else 10)


# --- damage ---


@pytest.mark.parametrize("name", ["model.safetensors", "state.safetensors", "state.json"])
def test_a_damaged_one_is_skipped_with_a_warning_and_the_one_before_is_used(tmp_path, name):
    checkpoints, warnings = of(tmp_path), []
    for step in (1, 2):
        path = save(checkpoints, step)
    spoil(path, name)
    loaded = of(tmp_path, warnings.append).newest()
    (warning,) = warnings
    assert loaded.step == 1 and same(loaded.state, training_state(1))
    assert all(words in warning for words in (str(path / name), "damaged", "step 2"))


def test_where_all_are_damaged_nothing_begins_from_zero(tmp_path):
    spoil(save(of(tmp_path), 1))
    (tmp_path / "step-0000000002-save-00002").mkdir()  # an emptied one
    warnings = []
    with pytest.raises(CheckpointDamaged, match="None of the 2 checkpoints") as raised:
        of(tmp_path, warnings.append).newest()
    assert all(f"step-000000000{step}" in raised.value.problem for step in (1, 2))
    assert raised.value.suggestion and len(warnings) == 2


def test_a_damaged_best_is_warned_of_once_and_the_next_best_is_given(tmp_path):
    paths = {
        step: save(of(tmp_path), step, score) for step, score in [(1, 0.5), (2, 0.1), (3, 0.9)]
    }
    spoil(paths[2])
    warnings = []
    checkpoints = of(tmp_path, warnings.append)
    assert [checkpoints.best().step for _ in range(3)] == [1, 1, 1]
    assert len(warnings) == 1 and str(paths[2]) in warnings[0]


def test_one_of_a_newer_format_is_neither_removed_nor_passed_over_for_an_older_one(tmp_path):
    save(of(tmp_path, keep_last=1), 1)
    (save(of(tmp_path), 2) / "state.json").write_bytes(sealed(b'{"format":99}'))
    with pytest.raises(OtherFormat):
        of(tmp_path).newest()
    for step in (3, 4):
        save(of(tmp_path, keep_last=1), step)
    assert steps(tmp_path) == [2, 4]


# --- which one to go on from ---


def test_resume_takes_the_newest_none_or_the_one_named_under_whatever_name(tmp_path):
    first, _ = (save(of(tmp_path), step) for step in (1, 2))
    for resume, step in (("auto", 2), (str(first), 1)):
        assert of(tmp_path, resume=resume).resume().step == step
    assert of(tmp_path, warn=[].append, resume="no").resume() is None
    first.rename(tmp_path / "my favourite")
    assert of(tmp_path / "b").load(tmp_path / "my favourite").step == 1


def test_a_path_without_a_checkpoint_is_answered_with_those_that_are_there(tmp_path):
    path = save(of(tmp_path), 4)
    for wrong in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError) as raised:
            of(tmp_path).load(wrong)
        assert str(wrong) in raised.value.problem and str(path) in raised.value.suggestion
    with pytest.raises(UsageError):
        of(tmp_path).load(path / "state.json")


# --- rights ---


@pytest.fixture
def as_nobody(tmp_path):
    """Root may read everything: there the test goes on as another user."""
    if os.geteuid() != 0:
        yield
        return
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("closed", ["state.json", "model.safetensors", "."])
def test_one_that_may_not_be_read_is_not_taken_for_a_damaged_one(tmp_path, request, closed):
    _, path = (save(of(tmp_path), step) for step in (1, 2))
    (path / closed).chmod(0)
    request.getfixturevalue("as_nobody")
    for read in (lambda: of(tmp_path).newest(), lambda: of(tmp_path).load(path)):
        with pytest.raises(CheckpointUnreadable, match="may not be read") as raised:
            read()
        assert type(raised.value) is CheckpointUnreadable and "chmod" in raised.value.suggestion


def test_a_folder_that_may_not_be_listed_is_not_taken_for_an_empty_one(tmp_path, request):
    (tmp_path / "file").write_text("")
    save(of(tmp_path / "all"), 1)
    (tmp_path / "all").chmod(0)
    request.getfixturevalue("as_nobody")
    for folder in ("all", "file"):
        with pytest.raises(CheckpointUnreadable, match="cannot be read"):
            of(tmp_path / folder).newest()


def test_a_folder_that_may_not_be_written_says_so_and_names_what_is_kept(tmp_path, request):
    path = save(of(tmp_path), 1)
    tmp_path.chmod(0o555)
    request.getfixturevalue("as_nobody")
    with pytest.raises(BrimfulError, match="could not be written") as raised:
        save(of(tmp_path), 2)
    assert str(path) in raised.value.explanation


# --- a full disk ---


class Full(Disk):
    """Is full at each writing while more than `room` checkpoints are there."""

    def __init__(self, folder, room, number=errno.ENOSPC, where="write_tensors"):
        self.folder, self.room, self.number, self.where = folder, room, number, where

    def _check(self, what):
        if what == self.where and len(list(self.folder.glob("*step-*"))) > self.room:
            raise OSError(self.number, os.strerror(self.number), str(self.folder))

    def write_tensors(self, path, tensors, metadata):
        path.write_bytes(b"half")
        self._check("write_tensors")
        super().write_tensors(path, tensors, metadata)

    def write_bytes(self, path, content):
        path.write_bytes(content[:5])
        self._check("write_bytes")
        super().write_bytes(path, content)

    def sync(self, path):
        if path.is_file():
            self._check("sync")
        super().sync(path)


@pytest.mark.parametrize("where", ["write_tensors", "write_bytes", "sync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_what_was_there_and_names_it(tmp_path, where, number):
    kept = save(of(tmp_path, keep_last=1), 1)
    with pytest.raises(DiskFull) as raised:
        save(of(tmp_path, keep_last=1, disk=Full(tmp_path, 1, number, where)), 2)
    assert "step 2" in raised.value.problem and raised.value.kept == str(kept)
    assert "BRIMFUL_HOME" not in raised.value.suggestion
    assert hidden(tmp_path) == [] and steps(tmp_path) == [1]
    assert same(of(tmp_path).newest().state, training_state(1))


def test_old_ones_make_room_where_a_whole_one_stays(tmp_path):
    for step in (1, 2, 3):
        save(of(tmp_path), step)
    save(of(tmp_path, disk=Full(tmp_path, 3)), 4)  # three and the one being written are too many
    assert steps(tmp_path) == [2, 3, 4]


def test_the_only_whole_one_makes_no_room_for_the_next_even_if_damage_is_newer(tmp_path):
    warnings, (_, damaged) = [], (save(of(tmp_path, keep_last=2), step) for step in (1, 2))
    spoil(damaged)  # its sizes are right: only reading all of it shows the damage
    with pytest.raises(DiskFull) as raised:
        save(of(tmp_path, warnings.append, keep_last=2, disk=Full(tmp_path, 2)), 3)
    assert of(tmp_path, warnings.append).newest().step == 1
    assert "step-0000000001" in raised.value.kept and "step-0000000002" not in raised.value.kept


# --- what cannot be removed or held ---


def test_an_old_one_that_cannot_be_removed_is_warned_of_and_the_save_stands(tmp_path):
    class Sticky(Disk):
        def remove(self, folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    warnings = []
    checkpoints = of(tmp_path, warnings.append, keep_last=1, disk=Sticky())
    for step in (1, 2):
        save(checkpoints, step)
    assert of(tmp_path).newest().step == 2
    assert "could not be removed" in warnings[0] and "step-0000000001" in warnings[0]


# --- which ones stay, whatever happened ---


@st.composite
def histories(draw):
    """Checkpoints of one training, oldest first."""
    best = draw(st.sampled_from(["min", "max"]))
    rows = draw(
        st.lists(
            st.tuples(st.none() | st.floats(width=16), st.booleans(), st.integers(0, 50)),
            max_size=12,
        )
    )
    return [
        Kept(Path(f"step-{step}-save-{number}"), score, best, whole=whole)
        for number, (score, whole, step) in enumerate(rows)
    ]


@given(histories(), st.integers(1, 4), st.booleans())
def test_the_newest_whole_ones_and_the_best_stay_whatever_happened(
    checkpoints, keep_last, keep_best
):
    gone = to_remove(checkpoints, keep_last=keep_last, keep_best=keep_best)
    whole = [kept for kept in checkpoints if kept.whole]
    left = [kept for kept in whole if kept not in gone]
    assert left[-keep_last:] == whole[-keep_last:] and len(left) <= keep_last + keep_best
    assert not keep_best or best_of(checkpoints) not in gone
    for kept in checkpoints:  # a damaged one stays until there are enough whole ones after it
        if not kept.whole:
            assert (kept in gone) == (sum(other.save > kept.save for other in whole) >= keep_last)


@given(histories())
def test_no_score_is_better_than_the_best_and_the_first_of_equals_wins(checkpoints):
    winner = best_of(checkpoints)
    rivals = [
        kept
        for kept in checkpoints
        if kept.whole and kept.score is not None and not math.isnan(kept.score)
    ]
    assert (winner is None) == (not rivals)
    for kept in rivals:
        assert not (kept.score < winner.score if kept.best == "min" else kept.score > winner.score)
        assert kept.score != winner.score or winner.save <= kept.save
