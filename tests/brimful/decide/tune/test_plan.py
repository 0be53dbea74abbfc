import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brimful.decide.tune.plan import command_line, make_plan
from brimful.errors import UsageError
from brimful.values import Command, Objective, Outcome, Source
from tests.brimful.decide.builders import sample

COMMAND = Command(
    ("python", "my train.py", "--bs", "{batch_size}", "--lr", "0.1"),
    given={"batch_size": 64, "lr": 0.1},
)


def test_the_line_to_paste_has_the_environment_in_front_and_quotes_what_needs_it():
    command = replace(COMMAND, environment={"B": "x y", "A": "0"})
    line = command_line(command, {"batch_size": 96})
    assert line == "A=0 B='x y' python 'my train.py' --bs 96 --lr 0.1"


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.text(
            st.characters(min_codepoint=32, max_codepoint=1000, exclude_characters="{}"), max_size=8
        ),
        max_size=3,
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8),
)
def test_a_shell_gives_back_the_very_words_and_variables(words, value):
    program = "import os, sys; print(ascii(sys.argv[1:])); print(ascii(os.environ['TRIED']))"
    command = Command((sys.executable, "-c", program, *words), environment={"TRIED": value})
    line = command_line(command, {})
    assert subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUTF8": "1"},
        check=True,
    ).stdout.splitlines() == [ascii(list(words)), ascii(value)]


def test_an_open_placeholder_is_not_pasted():
    with pytest.raises(UsageError):
        command_line(COMMAND, {})


def test_a_plan_has_all_that_was_asked_and_chosen_and_counts_its_trials():
    samples = [
        sample(),
        sample(outcome=Outcome.OUT_OF_DEVICE_MEMORY),
        sample(outcome=Outcome.CRASHED),
    ]
    chosen, why = (
        {"batch_size": 96, "num_workers": 2},
        {"batch_size": "the knee"},
    )
    parts = Objective.THROUGHPUT, COMMAND, samples, chosen, why, {}
    plan = make_plan(*parts, verified=True)
    assert {row.name: (row.requested, row.effective, row.why) for row in plan.settings} == {
        "batch_size": (64, 96, "the knee"),
        "num_workers": (None, 2, "set by you"),
        "lr": (0.1, 0.1, "as asked"),
    }
    assert (plan.trials, plan.out_of_memory_trials) == (3, 1)
    assert plan.command_line.endswith("--bs 96 --lr 0.1")
    assert {row.source for row in plan.settings} == {Source.MEASURED}
    unverified = make_plan(*parts, verified=False)
    assert {row.source for row in unverified.settings} == {Source.PREDICTED}
