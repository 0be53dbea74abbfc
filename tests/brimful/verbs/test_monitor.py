"""What `monitor` says of a run while it goes on, looked at beside what the run really does then."""

import json
import os
import subprocess
import sys

import pytest

from brimful.errors import NoSuchRecord, UsageError
from brimful.record import read_record
from brimful.values import Estimate, Outcome, Source, State
from brimful.verbs.monitor import Monitor
from tests.brimful.watched import (
    BATCH_SIZE,
    EPOCHS,
    OF_EPOCH,
    PLANNED_PEAK_BYTES,
    PLANNED_RATE,
    STEPS,
    watched,
)

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("moment", ["before", "train", "eval"])
def test_a_run_that_goes_on_is_known_by_its_processes_and_its_time(moment):
    run = watched()
    status = run.statuses[moment]
    assert (status.state, status.part) == (State.GOING, "attempt 1")
    assert status.exit_code is None and status.message is None
    assert status.host.processes == 1 and status.host.processes_bytes > 20 << 20
    assert 0 < status.beat.seconds <= run.seconds[moment]
    assert status.command.endswith(f"train.py --batch-size {BATCH_SIZE} --epochs {EPOCHS}")
    assert status.silent_s < run.seconds[moment]


def test_in_training_step_loss_speed_and_loading_are_those_of_the_script():
    status = watched().statuses["train"]
    beat = status.beat
    assert (beat.phase, beat.steps, beat.loss, beat.ranks) == ("train", STEPS, 0.25, 1)
    assert 0 < beat.samples_per_s <= BATCH_SIZE / (BATCH_SIZE * 0.02), "a sample takes 0.02 s"
    least_s = BATCH_SIZE * 0.02  # of one batch
    assert least_s / watched().seconds["train"] < beat.loading_share <= 1
    assert status.tail == {"stdout": ("before ***", f"step {STEPS}")}, "a progress bar as it stands"


def test_the_plan_that_tune_left_of_the_command_is_what_it_is_set_beside():
    status = watched().statuses["train"]
    assert status.expected_peak_bytes == Estimate(
        PLANNED_PEAK_BYTES, Source.MEASURED, note="by tune"
    )
    assert status.expected_samples_per_s == Estimate(PLANNED_RATE, Source.MEASURED, note="by tune")


def test_the_time_left_is_that_of_the_steps_that_its_command_asks_for():
    status = watched().statuses["train"]
    steps = EPOCHS * OF_EPOCH - STEPS
    assert status.left_s.note == f"--epochs {EPOCHS}"
    assert status.left_s.value == pytest.approx(steps * BATCH_SIZE / status.beat.samples_per_s)


def test_a_run_that_fails_while_it_is_watched_says_how_with_both_exit_codes():
    run = watched()
    status, record = run.statuses["failed"], read_record(run.record)
    assert (status.state, status.exit_code, status.command_exit_code) == (State.ENDED, 5, 1)
    assert "a defect of the script's own" in status.message
    assert record.run.ended.outcome is Outcome.CRASHED
    assert status.beat.steps == record.run.attempts[0].steps == OF_EPOCH
    assert status.left_s is None and status.silent_s is None
    assert "RuntimeError: a defect" in status.tail["stderr"][-1]


def test_where_brimful_was_killed_what_still_runs_is_counted():
    statuses = watched().statuses
    assert statuses["killed"].host.processes == 1
    assert "after 6 steps" in statuses["killed"].message
    for status in (statuses["killed"], statuses["left"]):
        assert (status.state, status.exit_code) == (State.CUT_OFF, None)


def test_without_a_name_the_newest_record_is_looked_at_and_a_path_or_id_names_another():
    run = watched()
    assert Monitor(home=run.home).read().of == run.statuses["killed"].of
    for name in (str(run.record), run.record.name):
        assert Monitor(name, home=run.home).read().of == run.record.name


def test_where_there_is_no_record_it_says_so(tmp_path):
    with pytest.raises(NoSuchRecord, match="holds none"):
        Monitor(home=tmp_path)


def test_any_process_can_be_watched_until_its_end_and_one_that_is_not_there_is_refused():
    code = "print('up', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], **pipes)
    process.stdout.readline()  # just started, it holds some pages and says nothing of itself
    monitor = Monitor(pid=process.pid)
    status = monitor.read()
    assert (status.state, status.of) == (State.GOING, f"process {process.pid}")
    assert status.host.processes == 1 and status.host.processes_bytes > 1 << 20
    process.communicate(b"\n")
    ended = monitor.read()
    assert (ended.state, ended.exit_code, ended.host.processes) == (State.ENDED, None, 0)
    with pytest.raises(UsageError, match=f"no process {process.pid}"):
        Monitor(pid=process.pid)


def test_a_training_on_the_engine_is_read_from_its_own_log(tmp_path):
    def log(*rows: dict, end: str = "\n") -> None:
        text = "\n".join(json.dumps({"elapsed_s": 50.0, **row}) for row in rows)
        (tmp_path / "log.jsonl").write_text(text + end)

    old = {"event": "progress", "epoch": 1.9, "step": 95, "samples": 950, "loss": 3.0}
    rows = {"event": "settings", "rows": []}
    new = {"event": "progress", "epoch": 0.5, "step": 25, "samples": 250, "loss": 0.5}
    log(
        {**old, "samples_per_s": 9.0},
        rows,
        {"event": "warning", "code": "c", "problem": "p", "explanation": "", "suggestion": ""},
        {"event": "message", "sentence": "A batch was too large."},
        {**new, "samples_per_s": 5.0, "left_s": 150.0},
        end="\n{",
    )
    status = Monitor(str(tmp_path)).read()
    assert (status.state, status.message) == (State.UNKNOWN, None)
    assert (status.beat.steps, status.beat.loss, status.beat.samples_per_s) == (25, 0.5, 5.0)
    assert (status.left_s.value, status.left_s.note) == (150.0, "its epochs")
    assert status.tail == {"log.jsonl": ("p", "A batch was too large.")}
    assert Monitor(str(tmp_path), pid=os.getpid()).read().state is State.GOING
