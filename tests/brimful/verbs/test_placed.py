"""Where `run` sets the batch size of a script without a flag: by short trials, or as a record of
the same command knows it.
"""

import sys
from dataclasses import replace

import pytest

from brimful import predict, run, tune
from brimful.measure.accelerators import Accelerator
from brimful.trials import devices
from brimful.trials import session as session_module
from brimful.trials.session import Options
from brimful.values import Outcome, Place
from brimful.verbs.run import RunOptions
from tests.brimful.verbs.test_run import Notebook
from tests.brimful.verbs.world import World, chosen

SCRIPT = "batch_size = 16\nprint('trains')\n"


@pytest.fixture
def works(tmp_path, monkeypatch):
    """works(verb, size, …): calls it with a command whose trials are a `World`'s; (the record, its
    trials, what was said)."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    place = Place("script", str(script), 1, 13, 16, "batch_size = 16", "train.py:9")

    def call(verb=run, size=None, places=(place,), **more):
        world, user = World(places=places, dataset=100_000), Notebook()
        monkeypatch.setattr(session_module, "run_trial", world.launch)
        given = {} if size is None else {"batch_size": size}
        kind = RunOptions if verb is run else Options
        options = kind(home=tmp_path / "home", watcher=user)
        command = [sys.executable, "train.py"]
        return verb(command, settings=given, options=options, **more), world.launched, user.messages

    call.script, call.place = script, place  # type: ignore[attr-defined]
    return call


def in_force(record):
    assert record.run.ended.outcome is Outcome.COMPLETED
    return next(s.effective for s in record.run.attempts[0].settings if s.name == "batch_size")


def test_a_second_run_sets_the_batch_size_where_the_first_one_found_its_place(works):
    first, tried, _ = works(size=64, device="cpu")
    assert len(tried) == 2 and first.run.started.places == {"batch_size": works.place}
    for _ in range(2):
        again, tried, said = works(size=64, device="cpu")
        assert tried == [] and in_force(again) == 64
        assert again.run.started.places == {"batch_size": works.place}
        (note,) = [text for text in said if "set where train.py:1 has 16" in text]
        assert first.opened.record_id in note


def test_the_place_that_a_plan_has_is_known_to_a_run_with_a_size_of_its_own(works):
    works(tune, device="cpu", objective="largest")
    record, tried, _ = works(size=8, device="cpu")
    assert tried == [] and in_force(record) == 8


def test_a_prediction_for_the_card_that_is_here_knows_the_place_and_one_for_another_does_not(
    works, monkeypatch
):
    works(predict, gpu="a100-40gb")
    known, _, _ = works(predict, gpu="h100")
    assert known.prediction.places == {"batch_size": works.place} and known.prediction.sources
    assert len(works(size=64, device="cpu")[1]) == 2, "a script may take another number there"
    here = Accelerator(0, "cuda", "NVIDIA A100-SXM4-40GB", 40 << 30, 40 << 30)
    monkeypatch.setattr(devices.accelerators, "found_by", lambda python: (here,))
    record, tried, _ = works(size=64, device="auto")
    assert tried == [] and in_force(record) == 64


@pytest.mark.parametrize(
    "changed",
    ["# a comment moves the line\n" + SCRIPT, SCRIPT.replace("'trains'", "'trains too'")],
)
def test_where_the_files_have_changed_the_place_is_looked_for_anew(works, changed):
    works(size=64, device="cpu")
    works.script.write_text(changed)
    _, tried, said = works(size=64, device="cpu")
    assert len(tried) == 2
    assert any(text.startswith("Looks where the script sets") for text in said)


def test_a_plan_whose_file_has_a_comment_more_has_its_place_looked_for_anew(works):
    plan = works(tune, device="cpu", objective="largest")[0]
    assert works(device="cpu")[1] == []
    works.script.write_text("# a comment moves the line\n" + SCRIPT)
    moved = replace(works.place, line=2)
    record, tried, _ = works(places=(moved,), device="cpu")
    assert in_force(record) == chosen(plan)
    assert record.run.started.source == "plan" and len(tried) == 2
    assert record.run.started.places == {"batch_size": moved}


def test_a_size_beyond_those_that_were_tried_is_tried_where_the_number_is_in_the_text(works):
    works(size=64, device="cpu")
    assert len(works(size=65, device="cpu")[1]) == 2
    at_loader = Place("loader", str(works.script), 2, 0, 16, "DataLoader(", "train.py:2", ["a:2"])
    works.script.write_text(SCRIPT + "\n")
    works(size=64, places=(at_loader,), device="cpu")
    assert works(size=4096, places=(at_loader,), device="cpu")[1] == []
