"""The result in one sentence."""

import math
import re
from dataclasses import replace

import pytest

from brimful.show.headline import Headline, headline, of_audit, of_plan, of_prediction
from brimful.show.prediction_facts import prediction_facts
from brimful.show.prediction_sections import prediction_sizes
from brimful.show.section import Findings, Sentences, Table
from brimful.show.sections import sections
from brimful.show.several_sections import sizes_table
from brimful.show.text import bytes_text, loading_text
from brimful.values import (
    Closed,
    Diagnostic,
    Estimate,
    Loading,
    NotRun,
    Objective,
    Plan,
    Prediction,
    Source,
    Verdict,
)
from tests.brimful.show import product

TONES = {
    "predict-fits": "good",
    "predict-out-of-memory": "bad",
    "predict-as-given": "good",
    "audit": "note",
    "audit-clean": "good",
    "tune-cpu": "good",
    "tune-interrupted": "unfinished",
    "tune-fits-nothing": "bad",
    "script-raised": "bad",
    "torn": "unfinished",
    "empty": "unfinished",
    "run-restarted": "good",
    "run-failed": "bad",
    "run-cut-off": "unfinished",
}


@pytest.mark.parametrize("name", TONES)
def test_the_headline_has_the_tone_of_its_answer_and_is_a_sentence(name: str) -> None:
    """What it says stands in the golden screens."""
    result = headline(product.ALL[name]())
    assert result.tone == TONES[name] and result.sentence.endswith(".")


def test_a_size_that_is_not_the_fastest_by_all_runs_is_said_to_be_among_the_fastest() -> None:
    record = product.tune_on_cpu()
    assert record.speed is not None and record.speed.knee_batch_size == 256
    said = headline(replace(record, speed=replace(record.speed, knee_batch_size=512))).sentence
    assert said.startswith("Batch size 256 is among the fastest on this CPU: 962 samples/s")


def plan(**changes: object) -> Plan:
    return replace(product.tune_on_cpu().plan, **changes)  # type: ignore[arg-type]


def prediction(**changes: object) -> Prediction:
    return replace(product.predict_fits().prediction, **changes)  # type: ignore[arg-type]


def brief(value: Prediction) -> dict[str, str]:
    return {fact.name: fact.cell.text for fact in prediction_facts(value) if fact.brief}


def loads(workers: int, one: float, asked: float) -> Loading:
    card = Estimate(16_100, Source.PREDICTED, 9_000, 30_000)
    measured = [Estimate(rate, Source.MEASURED) for rate in (one, asked)]
    return Loading(workers, *measured, card, math.ceil(16_100 / one), asked < 16_100)


@pytest.mark.parametrize(
    ("verdict", "share", "is_said"),
    [
        (Verdict.DOES_NOT_FIT, 0.3, True),
        (Verdict.DOES_NOT_FIT, 0.9, False),
        (Verdict.FITS, 0.3, False),
    ],
)
def test_where_much_more_is_reserved_than_tensors_take_what_does_not_fit_says_both(
    verdict: Verdict, share: float, is_said: bool
) -> None:
    peak = prediction().peak
    assert peak is not None
    less = replace(peak, allocated_bytes=int(share * peak.reserved_bytes))
    value = prediction(verdict=verdict, peak=less)
    fact = brief(value).get("fragments", "")
    assert fact == f"tensors take {bytes_text(less.allocated_bytes)} of the peak" * is_said


def test_where_the_card_waits_for_data_both_rates_and_the_workers_are_brief() -> None:
    ends = {
        (4, 11_000): "the GPU waits for data: 16,100 samples/s on the card (predicted); one core "
        "here loads about 2,900 (measured), the 4 workers asked for about 11,000: about 6 workers "
        "needed",
        (0, 2_900): "loads about 2,900 (measured): about 6 workers needed, and the script has none",
        (6, 5_000): "for about 5,000: about 6 workers needed, each with a core of its own",
    }
    for (workers, rate), end in ends.items():
        value = prediction(loading=loads(workers, 2_900, rate))
        assert of_prediction(value).tone == "note" and brief(value)["loading"].endswith(end)
    enough = prediction(loading=loads(8, 2_900, 20_000))
    assert of_prediction(enough).tone == "good" and "loading" not in brief(enough)


def test_where_one_core_keeps_up_the_share_of_the_time_says_what_loading_costs() -> None:
    assert loading_text(loads(0, 16_100, 16_100)) == (
        "16,100 samples/s on the card (predicted); one core here loads about 16,100 (measured); "
        "without a worker the card waits 50 % of the time"
    )
    assert loading_text(loads(0, 1_593_900, 1_593_900)).endswith(
        "; without a worker the card waits 1 % of the time"
    )


@pytest.mark.parametrize(
    ("changes", "left_out"),
    [
        ({"ranks": 4}, "communication between 4 ranks"),
        ({"environments": "gymnasium"}, "rollouts in its environments (gymnasium)"),
        ({"ranks": 4, "exchange": Estimate(0.001, Source.PREDICTED, note="NVLink")}, ""),
    ],
)
def test_a_speed_without_what_takes_time_besides_is_said_to_be_one_below_the_table(
    changes: dict, left_out: str
) -> None:
    value = replace(prediction(), speed=replace(prediction().speed, **changes))
    (table,) = prediction_sizes(value, brief=True)
    assert isinstance(table, Table)
    assert (f"Speed is without {left_out}." in table.notes) is bool(left_out)


def test_that_nobody_compared_what_is_learned_is_said_of_another_batch_size_alone() -> None:
    record = product.tune_on_cpu()
    sentence = "Learning was not compared (brimful compare --plan does)."
    assert headline(record).sentence.endswith(sentence)
    rows = [replace(row, requested=row.effective) for row in record.plan.settings]
    same = replace(record, plan=replace(record.plan, settings=tuple(rows)))
    assert sentence not in headline(same).sentence


def test_the_fastest_size_stands_beside_the_largest_that_fits() -> None:
    record = product.tune_on_cpu()
    known = replace(record, memory=replace(record.memory, largest_batch_size=900))
    assert headline(known).largest == "The largest that fits is 900."
    assert "largest that fits" not in headline(record).sentence, "the estimate does not state it"


def test_a_plan_claims_no_trial_and_no_speed_that_it_lacks() -> None:
    result = of_plan(plan(verified=False))
    assert result.tone == "note" and result.sentence.endswith("No trial has confirmed it.")
    assert (
        "fastest" not in of_plan(plan(objective=Objective.THROUGHPUT, samples_per_s=None)).sentence
    )


def test_a_prediction_of_the_largest_says_that_it_is_the_largest() -> None:
    assert of_prediction(prediction(batch_size=4096, next_command=None)).sentence.endswith(
        " It is the largest that fits, limited by the length of the dataset."
    )
    unknown = prediction(
        batch_size=None, largest_batch_size=None, peak=None, verdict="does_not_fit"
    )
    assert "fits" not in of_prediction(unknown).sentence
    nothing = replace(unknown, nothing_fits=True)
    fits_none = (
        "No batch size fits NVIDIA A100-SXM4-40GB: not even the smallest stays within 35.5 GiB."
    )
    assert of_prediction(nothing) == Headline("bad", fits_none)


def test_a_size_that_fits_only_as_the_cache_is_emptied_says_so_beside_its_share() -> None:
    value = product.predict_oom().prediction
    more = [
        replace(row, peak_bytes=Estimate(1.02 * value.budget.bytes, Source.PREDICTED))
        if row.batch_size == 1733
        else row
        for row in value.sizes
    ]
    (table,) = sizes_table(more, value.budget, None)
    assert "102 %, fits" in [cell.text for row in table.rows for cell in row]


def test_a_loader_that_waited_for_a_core_is_not_called_slow() -> None:
    assert loading_text(replace(loads(0, 2_900, 2_900), busy=0.64, binds=False)) == (
        "not measured: this machine is busy (a worker of the loader waited 64 % of the time for a "
        "core)"
    )


def test_cards_that_the_command_leaves_idle_stand_before_all_numbers() -> None:
    idle = Diagnostic("idle-cards", "the command uses one of the two cards", "", "torchrun … both")
    record = replace(product.predict_fits(), prediction=prediction(warnings=(idle,)))
    assert headline(record).sentence.startswith(
        "The command uses one of the two cards; torchrun … both. Batch size 64 fits "
    )


EMPTIES = Diagnostic("gives-cache-back", "it empties its cache", "", "")


@pytest.mark.parametrize(
    ("verdict", "beyond", "warnings", "tone", "words"),
    [
        ("tight", 1, (), "bad", r"is tight on .*: predicted peak .* to 36\.5 GiB\) of 35\.5 GiB"),
        ("fits", -1, (), "good", r"PyTorch may have to empty its cache .*: predicted peak 35"),
        ("fits", -1, (EMPTIES,), "good", r"PyTorch has to empty its cache .*: predicted peak 35"),
        (
            "fits",
            2**30,
            (EMPTIES,),
            "good",
            r"PyTorch has to empty its cache .*: predicted peak 36\.5 GiB without a limit, 35\.5",
        ),
    ],
)
def test_where_a_peak_may_pass_what_is_allowed_it_is_said_at_which_end_of_its_interval(
    verdict: str, beyond: int, warnings: tuple[Diagnostic, ...], tone: str, words: str
) -> None:
    value = prediction()
    most = value.budget.bytes
    interval = (1, most + 2**30)
    near = replace(value.peak, device_bytes=most + beyond, device_interval_bytes=interval)
    result = of_prediction(replace(value, verdict=verdict, peak=near, warnings=warnings))
    assert result.tone == tone and re.search(words, result.sentence)


def test_a_record_that_only_ended_with_a_message_shows_it() -> None:
    record = replace(product.empty(), closed=Closed(2, 0.0, "nothing sets the placeholder {lr}."))
    assert headline(record).sentence == "Nothing sets the placeholder {lr}."


FAST, OWN = (
    Estimate(308.0, Source.MEASURED, 303.0, 312.0),
    Estimate(218.0, Source.MEASURED, 214.0, 222.0),
)


@pytest.mark.parametrize(
    ("baseline", "changes", "says"),
    [
        (
            OWN,  # by turns, whatever the medians are
            {"gain": Estimate(1.3, Source.MEASURED, note="2 turns")},
            "1.30x faster than your settings (2 turns)",
        ),
        (
            FAST,
            {},
            "Your own settings stay, batch size 256: nothing was clearly faster",
        ),
        (
            FAST,
            {"partial": "the time limit was up after 9 trials"},
            "your own settings stay, batch size 256: no gain was confirmed by then",
        ),
    ],
)
def test_a_speed_within_the_noise_of_the_users_own_is_not_called_faster(
    baseline: Estimate, changes: dict, says: str
) -> None:
    given = {"samples_per_s": FAST, "baseline_samples_per_s": baseline, "gain": None}
    said = of_plan(plan(**(given | changes))).sentence
    assert says in said and ("x faster" in said) is ("x faster" in says)


def test_a_run_that_trained_nothing_is_no_good_end() -> None:
    record = product.run_restarted()
    last = replace(record.run.attempts[-1], reports=(object(),))  # type: ignore[arg-type]
    assert headline(replace(record, run=replace(record.run, attempts=(last,)))).tone == "unfinished"


def test_an_audits_headline_is_its_first_finding_whatever_was_requested() -> None:
    audit = product.ALL["audit"]().audit
    asked = {"batch_size": 128, "accumulation": 4}
    said = of_audit(replace(audit, requested=asked))
    assert (said.tone, said.sentence) == ("note", f"1 finding: {audit.findings[0].problem}")
    too_large = replace(audit.findings[0], code="does-not-fit")
    assert of_audit(replace(audit, findings=(too_large,))).tone == "bad"


def test_an_audits_headline_says_where_the_samples_of_a_step_are_assumed() -> None:
    audit = product.ALL["audit-clean"]().audit
    effective = replace(audit.effective, samples_source=Source.ASSUMED)
    sentence = of_audit(replace(audit, effective=effective)).sentence
    assert sentence.endswith("effective batch 64 (assumed).")


def test_a_leak_stands_before_the_peak_that_it_outgrows() -> None:
    leak = Diagnostic("memory-grows", "each step leaves 3.00 MiB more", "", "keep numbers")
    record = replace(product.predict_fits(), prediction=prediction(warnings=(leak,)))
    said = headline(record)
    assert (said.tone, said.largest) == ("bad", "")
    assert said.verdict.startswith("Each step leaves 3.00 MiB more; keep numbers. Batch size 64 ")


def test_what_fits_is_without_an_evaluation_where_one_may_come_after_the_trial() -> None:
    later = of_prediction(prediction(evaluates_later=True))
    assert later.tone == "note" and "No evaluation was reached" in later.verdict
    assert "evaluation" not in of_prediction(prediction()).sentence


def test_what_ran_in_no_trial_is_said_of_what_fits_and_of_no_more_than_two_places() -> None:
    branch = NotRun("train.py", 4, "step > 9", 5, 5, False)
    late = Diagnostic("not-run", "line 5 ran in no trial", "", "--reach train.py:5 counts it")
    for number, more in ((1, ""), (2, ""), (3, " 1 more such place: --details.")):
        said = of_prediction(prediction(not_run=(branch,) * number, warnings=(late,) * number))
        sentence = " Line 5 ran in no trial; --reach train.py:5 counts it."
        assert said.tone == "note" and said.verdict.endswith(sentence * min(2, number) + more)
    fails = prediction(verdict=Verdict.DOES_NOT_FIT, not_run=(branch,), warnings=(late,))
    assert "no trial" not in of_prediction(fails).verdict


def test_what_changes_the_meaning_of_numbers_comes_before_them_and_the_rest_after() -> None:
    warnings = (
        Diagnostic("upper-bounds", "assumed", "", "look there"),
        Diagnostic("trial-note", "no evaluation", "", ""),
        Diagnostic("memory-grows", "it grows", "", ""),
    )
    record = product.predict_fits()
    shown = sections(replace(record, prediction=replace(record.prediction, warnings=warnings)))
    places = {
        one.code: number
        for number, part in enumerate(shown)
        if isinstance(part, Findings)
        for one in part.findings
    }
    assert places["memory-grows"] == 0 < places["upper-bounds"]
    assert "trial-note" not in places, "what asks for nothing is no warning"
    assert Sentences("Notes", ("no evaluation",)) in shown
