"""Records as sections: what a table holds, and that a view states nothing which no value states."""

import io
from dataclasses import replace

import pytest

from brimful.show.console import make_console, render_text, show_record
from brimful.show.html import render_page
from brimful.show.markdown import render_markdown
from brimful.show.section import CommandLine, Figure, Section, Sentences, Table
from brimful.show.sections import effective_rows, memory_sentences, sections
from brimful.values import (
    Budget,
    Diagnostic,
    Estimate,
    MemoryEstimate,
    Point,
    Record,
    Source,
)
from brimful_inside.wire import Ends
from tests.brimful.show import product
from tests.brimful.verbs.world import GIB, MIB


def titled(record: Record, start: str) -> list[Section]:
    return [section for section in sections(record) if section.title.startswith(start)]


def table(record: Record, start: str) -> Table:
    (found,) = titled(record, start)
    return found


def column(found: Table, name: str) -> list[str]:
    at = [one.name for one in found.columns].index(name)
    return [row[at].text for row in found.rows]


def test_the_order_is_table_next_command_charts_warnings_notes_then_modules_and_trials() -> None:
    record = product.predict_as_given()
    shown = sections(replace(record, notes=(Diagnostic("trial-note", "no evaluation", "", ""),)))
    places = {
        "table": next(n for n, part in enumerate(shown) if part.title.startswith("Peaks by phase")),
        "next": next(n for n, part in enumerate(shown) if isinstance(part, CommandLine)),
        "charts": next(n for n, part in enumerate(shown) if isinstance(part, Figure)),
        "warnings": shown.index(next(part for part in shown if part.title == "Warnings")),
        "notes": shown.index(Sentences("Notes", ("no evaluation",))),
        "modules": next(n for n, part in enumerate(shown) if part.title == "By category"),
        "trials": next(n for n, part in enumerate(shown) if part.title == "Trials"),
    }
    assert list(places.values()) == sorted(places.values())
    assert not any(isinstance(part, Figure) for part in shown[places["warnings"] :])


def test_a_note_is_shown_once_and_not_again_under_the_trials() -> None:
    record, text = product.predict_fits(), "the trial reached no evaluation"
    noted = tuple(replace(trial, notes=(text, "it left 2 files")) for trial in record.trials)
    warned = replace(record.prediction, warnings=(Diagnostic("trial-note", text, "", ""),))
    shown = render_text(replace(record, trials=noted, prediction=warned))
    assert shown.count(text) == 1 and shown.count("it left 2 files") == 1
    audit = product.audit_record()
    noted = tuple(replace(trial, notes=(text,)) for trial in audit.trials)
    shown = render_text(replace(audit, trials=noted, audit=replace(audit.audit, notes=(text,))))
    assert shown.count(text) == 1


def test_an_evaluation_that_no_trial_reached_is_not_seen() -> None:
    record = product.tune_on_cpu()
    trials = tuple(
        replace(
            one,
            phases={"train": one.phases["train"]},
            trial=replace(one.trial, ends=Ends(see_eval=True)),
        )
        for one in record.trials
        if one.phases
    )
    last = table(replace(record, trials=trials), "Peaks by phase").rows[-1]
    assert [cell.text for cell in last[:2]] == ["eval", "not seen"]
    unasked = tuple(
        replace(one, trial=replace(one.trial, ends=Ends(see_eval=False))) for one in trials
    )
    assert column(table(replace(record, trials=unasked), "Peaks by phase"), "phase") == ["train"]


def test_the_speed_figure_says_why_the_plan_takes_another_size_than_the_medians_name() -> None:
    def sentence(record: Record) -> str:
        return next(
            one for one in sections(record) if isinstance(one, Figure) and one.title == "Speed"
        ).sentences[0]

    record = product.tune_on_cpu()
    assert sentence(record) == "256 is the smallest batch size within 3 % of the fastest."
    said = sentence(replace(record, speed=replace(record.speed, knee_batch_size=512)))
    assert (
        "512 is the smallest" in said
        and ", by the medians of all runs; the plan takes 256: " in said
    )


def test_an_absent_number_of_an_audit_is_a_dash_and_never_nought() -> None:
    audit = product.audit_record().audit
    effective = replace(audit.effective, loader_batch_size=None, samples_per_step=None)
    rows = dict(effective_rows(replace(audit, effective=effective, loading_share=None)))
    names = ("batch size of the loader", "effective batch", "waiting for data")
    assert [rows[name].text for name in names] == ["–"] * 3


def test_each_finding_of_an_audit_is_named_before_its_numbers() -> None:
    findings = tuple(Diagnostic(code, f"{code} is wrong.", "why", "do") for code in ("a", "b", "c"))
    record = product.audit_record()
    record = replace(record, audit=replace(record.audit, findings=findings))
    assert render_text(record).splitlines()[2:4] == ["Also: b is wrong.", "Also: c is wrong."]


# --- what a chart's sentences may state ---


def estimate(*sizes: int, largest: int | None = None) -> MemoryEstimate:
    points = tuple(Point(size, Estimate(float(size * MIB), Source.MEASURED)) for size in sizes)
    return MemoryEstimate(
        "host",
        "peaks",
        False,
        0.0,
        1.0 * MIB,
        0.0,
        points,
        points,
        largest,
        "budget" if largest else None,
    )


BUDGET = Budget(GIB, GIB, GIB, "host", "given")


@pytest.mark.parametrize(
    ("memory", "end"),
    [
        (estimate(1, 64, largest=512), "The largest that fits is 512, limited by the budget."),
        (
            replace(estimate(2048, 4096), nothing_fits=True),
            "Batch size 2,048 already needs 2.00 GiB of 1.00 GiB allowed.",
        ),
        (estimate(2048, 4096), "Fixed 0 bytes, 1.00 MiB for each sample."),
        (estimate(1, 64, 4096), "Fixed 0 bytes, 1.00 MiB for each sample."),
    ],
)
def test_a_memory_chart_says_of_the_largest_size_only_what_the_estimate_states(
    memory: MemoryEstimate, end: str
) -> None:
    assert memory_sentences(memory, BUDGET)[-1] == end


def test_a_command_to_paste_says_what_is_to_be_put_where_a_secret_was():
    tuned = product.tune_on_cpu()
    line = "python train.py --hub_token '***' --batch-size 256"
    hidden = replace(tuned, plan=replace(tuned.plan, command_line=line))
    said = "Put your own values where *** stands."
    assert said in render_text(hidden) and said not in render_text(tuned)
    assert said in render_page(hidden) and said.replace("*", "\\*") in render_markdown(hidden)
    fits = product.predict_fits()
    following = replace(fits.prediction.next_command, line=line)
    brief = io.StringIO()
    console = make_console(brief, width=80, is_terminal=False)
    hidden = replace(fits, prediction=replace(fits.prediction, next_command=following))
    show_record(console, hidden, full=False)
    assert f"{said}\n          {line}\n" in brief.getvalue()
