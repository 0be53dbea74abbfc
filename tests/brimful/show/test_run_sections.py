"""Sections of what ran: trials and attempts."""

from dataclasses import replace
from math import nan

import pytest

from brimful.show.run_sections import command_of, phases_table, run_sections, trial_sections
from brimful.show.section import Column, CommandLine, Figure, Table
from brimful.show.text import worst_memory
from brimful.values import (
    Attempt,
    AttemptStarted,
    EffectiveSetting,
    Heartbeat,
    Outcome,
    PhasePeak,
    Run,
    Source,
    TrialKind,
)
from tests.brimful.show import product
from tests.brimful.verbs.world import GIB, MIB


def run(*attempts: Attempt) -> Run:
    value = product.run_restarted().run
    return replace(value, attempts=attempts) if attempts else value  # type: ignore


def attempts_of(value: Run) -> Table:
    (found,) = [one for one in run_sections(value) if one.title == "Attempts"]
    return found


def test_the_attempts_show_the_settings_that_changed_and_why_each_ended() -> None:
    same = EffectiveSetting("lr", 0.1, 0.1, "as requested", Source.MEASURED)
    both = [replace(one, settings=(*one.settings, same)) for one in run().attempts]
    assert [row[1].text for row in attempts_of(run(*both)).rows] == [
        "batch_size 64",
        "batch_size 32",
        "batch_size 16",
    ]
    assert attempts_of(run(both[0])).rows[0][1].text == "batch_size 64\nlr 0.1"
    notes = attempts_of(run()).notes
    assert (
        "Attempts 1, 2: exit code 1" in notes
        and "Attempts 2, 3: resumed from its checkpoint" in notes
    )
    over = [
        replace(one, resumed=False, output_cut="the disk is full") for one in run().attempts[1:2]
    ]
    assert {"Attempt 2: started over", "Attempt 2: the disk is full"} <= set(
        attempts_of(run(*over)).notes
    )


def test_the_command_in_force_is_the_last_attempts_with_its_environment() -> None:
    last = replace(run().attempts[-1], environment={"B": "2", "A": "1 x"})
    assert command_of(last) == "A='1 x' B=2 python train.py 16 --resume last"


@pytest.mark.parametrize(
    ("peak", "worst"),
    [
        (PhasePeak(None, None, None, MIB), ("host", 3 * MIB)),
        (PhasePeak(MIB, MIB, GIB, None), ("device", GIB)),
    ],
)
def test_a_run_on_a_cpu_shows_what_all_its_processes_held_together(
    peak: PhasePeak, worst: tuple[str, int]
) -> None:
    attempt = replace(run().attempts[0], process_tree_host_bytes=3 * MIB, peak=peak)
    assert worst_memory(attempt) == worst


def test_a_trial_on_a_cpu_shows_what_the_plan_compares_with_the_budget() -> None:
    record = product.tune_on_cpu()
    with_workers = [replace(one, process_tree_host_bytes=7 * GIB) for one in record.trials]
    table = trial_sections(replace(record, trials=with_workers))[0]
    at = [column.name for column in table.columns].index("peak host")
    assert {row[at].text for row in table.rows} == {"7.00 GiB"}, (
        "loader workers and ranks hold memory too"
    )


def test_without_a_result_the_trials_are_the_result_and_else_a_detail() -> None:
    table, quote = trial_sections(product.script_raised())
    assert not table.detail and quote.open
    (tuned,) = trial_sections(product.tune_on_cpu())
    assert isinstance(tuned, Table) and tuned.detail


def test_host_memory_that_was_not_measured_truly_says_so_and_a_caught_error_too() -> None:
    record = product.tune_out_of_memory()
    one = next(
        trial for trial in record.trials if trial.trial.kind is TrialKind.MEMORY and trial.peak
    )
    kept = replace(one, peak=replace(one.peak, host_is_true=False))
    caught = replace(
        one, outcome=Outcome.OUT_OF_HOST_MEMORY, failure=replace(product.CRASH, caught=True)
    )
    table = trial_sections(replace(record, trials=(one, kept, caught)))[0]
    assert [row[4].note for row in table.rows[:2]] == [None, "with freed memory that was kept"]
    assert table.rows[2][3].text == "out of host memory, caught by the script"


def test_a_phase_shows_its_visits_and_a_cached_one_has_no_share() -> None:
    budget = product.predict_fits().opened.budget
    peak = PhasePeak(GIB, GIB, 2 * GIB, None, visits=3)
    (table,) = phases_table(
        "Peaks", {"train": peak, "encoding": replace(peak, cached=True)}, ("eval",), budget
    )
    assert [column.name for column in table.columns] == [
        "phase",
        "allocated",
        "reserved",
        "device",
        "of the budget",
    ]
    assert table.rows[0][0].note == "worst of 3 visits" and table.rows[0][4].share
    assert table.rows[1][4].share is None and "cached" in (table.rows[1][0].note or "")
    assert phases_table("Peaks", {}) == []
    (only,) = phases_table("Peaks", {}, ("eval",))
    assert only.columns == (Column("phase"), Column("peak"))


def test_a_run_is_drawn_over_its_time_and_what_was_not_seen_is_left_out() -> None:
    one = run().attempts[-1]

    def beat(at: float, loss: float | None, rate: float | None, held: int | None) -> Heartbeat:
        more = {"samples_per_s": rate, "loss": loss, "allocated_bytes": held}
        return Heartbeat("train", 1, at, process_tree_host_bytes=2 * GIB, **more)  # type: ignore

    course = (
        beat(1.0, None, None, None),
        beat(2.0, 3.0, 500.0, GIB),
        beat(3.0, 1.0, 700.0, 3 * GIB),
    )

    def figures(*points: Heartbeat) -> list[Figure]:
        shown = run_sections(run(replace(one, course=points)))
        return [part for part in shown if isinstance(part, Figure)]

    loss, memory, rate = figures(*course)
    assert [part.title for part in (loss, memory, rate)] == [
        "Loss over time",
        "Memory allocated on the card over time",
        "Samples a second over time",
    ]
    assert loss.sentences == (
        "3 at first, 1 at the end, 3 at most of the points shown (measured).",
    )
    assert memory.sentences[0].startswith("1.00 GiB at first, 3.00 GiB at the end")
    assert "seconds" in memory.draw(450) and "GiB" in memory.draw(450)
    (host,) = figures(*(replace(point, loss=nan, allocated_bytes=None) for point in course))[:1]
    assert host.title == "Memory of all processes over time", "a loss that is NaN has no curve"
    assert figures() == figures(course[0]) == []


@pytest.mark.parametrize(("ended", "steps"), [(0, 17), (1, None)])
def test_an_attempt_without_an_end_is_shown_with_the_steps_that_its_processes_reported(
    ended: int, steps: int | None
) -> None:
    whole = run()
    last = whole.attempts[1]
    going = AttemptStarted(
        number=ended + 1,
        settings=last.settings,
        argv=last.argv,
        environment={"A": "1"},
        resumed=None if ended == 0 else True,
        folder="attempt-001",
        started_unix_s=0.0,
        pid=1,
    )
    cut = replace(
        whole, attempts=whole.attempts[:ended], ended=None, going=going, going_steps=steps
    )
    table = attempts_of(cut)
    assert len(table.rows) == ended + 1
    texts = [cell.text for cell in table.rows[-1]]
    assert texts == [str(ended + 1), "batch_size 32", "no end", "17" if steps else "–", *"–––"]
    assert any(note.startswith(f"Attempt {ended + 1}: ") for note in table.notes)
    command = run_sections(cut)[0]
    assert isinstance(command, CommandLine) and command.line.startswith("A=1 python train.py 32")
