"""What is said of branches that no step of a trial took."""

from dataclasses import replace

from brimful.decide.not_run import about_branches, branches_not_run
from brimful.values import NotRun, Outcome
from tests.brimful.show import product

LATE = NotRun("/home/me/train.py", 87, "step > after", 88, 92, False)
SMALL = NotRun("/home/me/train.py", 40, "step <= warm_up", 0, 0, False)


def results(*branches, not_reached=(), outcome=Outcome.COMPLETED, watches=True):
    result = product.predict_fits().trials[0]
    report = replace(result.reports[0], not_run=list(branches), not_reached=list(not_reached))
    trial = replace(result.trial, watches_branches=watches)
    return [replace(result, trial=trial, reports=(report,), outcome=outcome)]


def test_a_branch_is_said_with_its_lines_its_condition_and_what_counts_it():
    late, small = about_branches(results(LATE, SMALL))
    assert late.problem.startswith("lines 88–92 (`step > after`) ran in no trial")
    assert late.suggestion == "--reach train.py:88 counts it"
    assert "(line 40) held in every step" in small.problem and "train.py:40" in small.suggestion


def test_the_trial_that_watched_and_trained_says_it():
    watched, other = results(LATE), results(SMALL, watches=False)
    failed = results(SMALL, outcome=Outcome.OUT_OF_DEVICE_MEMORY)
    assert branches_not_run([*watched, *other, *failed]) == (LATE,)
    assert branches_not_run([*other, *failed]) == () and not list(about_branches([]))


def test_a_line_that_was_to_be_reached_and_was_not_is_said():
    (said,) = about_branches(results(not_reached=["train.py:3"]))
    assert said.code == "not-reached" and said.problem.startswith("train.py:3 was not reached")
