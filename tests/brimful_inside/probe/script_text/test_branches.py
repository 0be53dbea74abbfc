"""Which branches of a script no step took, and how a line is reached."""

import ast
import os
import textwrap
from types import SimpleNamespace

import pytest
import torch

from brimful_inside.probe.script_text import branches

NAMES = {
    "njit": lambda f: f,
    "torch": torch,
    "F": torch.nn.functional,
    "net": torch.nn.Linear(2, 2),
}
LATE = [
    ("if step > after:\n    loss = net(x).square()", (4, 5, 5)),
    ("if step % 500 == 0:\n    print(step)\n    torch.save(net.state_dict(), 'x.pt')", (4, 5, 6)),
    ("if step % 500:\n    pass\nelse:\n    net.eval()", (4, 7, 7)),
    ("if step <= after:\n    x = F.relu(x)", (4, 0, 0)),  # later steps are larger
    ("if step < after:\n    continue\nnet(x)", (4, 6, 6)),
    ("if on and step > after:\n    net(x)", (4, 5, 5)),
    ("if step < after:\n    pass\nelif step > after:\n    net(x)", (4, 6, 7)),
]
NOTHING = [
    "if step % 500 == 0:\n    print(net(x).sum().item())\n    total = len(x)",  # it shows
    "if off and step > after:\n    net(x)",  # ruled out by the arguments
    "if step > after and off:\n    net(x)",
    "if off:\n    net(x)",  # nothing counts
    "if step % 2:\n    net(x)",  # both ran
    "if step > after:\n    break",
    "if step < after:\n    net(x)",  # with it a step takes more, and it always held
    "if step > after:\n    rate = 0.1 * step",
    # numba knows no name that we put into builtins
    "@njit\ndef f(step):\n    if step > after:\n        net(x)\nf(step)",
]


@pytest.fixture
def run(monkeypatch):
    """run(text, *lines to reach) -> the steps in which the text noted something."""
    monkeypatch.setattr(branches, "_branches", [])
    monkeypatch.setattr(branches, "_known", [])
    monkeypatch.setattr(branches, "_counting", set())
    monkeypatch.setattr(branches, "_wanted", {})
    monkeypatch.setattr(branches, "is_users", lambda path: "train.py" in path)

    def run(text, *lines, steps=6):
        branches.reach([f"train.py:{line}" for line in lines])
        loop = "for step in range(1, stop):\n    probe.steps.count = step - 1\n"
        loop += "    x = torch.ones(1, 2, 2)\n"
        text = loop + textwrap.indent(text, "    ")
        tree = ast.parse(text)
        branches.watch(tree, text.encode(), os.path.abspath("train.py"))
        probe = SimpleNamespace(steps=SimpleNamespace(count=0))
        monkeypatch.setattr(branches, "current_probe", lambda: probe)
        noted = []
        more = {"probe": probe, "after": 100, "on": True, "off": False, "noted": noted}
        code = compile(ast.fix_missing_locations(tree), os.path.abspath("train.py"), "exec")
        exec(code, {**NAMES, **more, "stop": steps + 1})
        return noted

    return run


@pytest.mark.parametrize(("text", "lines"), LATE)
def test_a_branch_that_may_run_later_and_works_with_tensors_is_said(run, text, lines):
    run(text)
    (branch,) = branches.not_run()
    assert (branch.line, branch.first_line, branch.last_line) == lines
    assert (
        text.startswith(f"if {branch.condition}:")
        or f"elif {branch.condition}:" in text
        or (text.startswith(f"if on and {branch.condition}"))
    )


@pytest.mark.parametrize("text", NOTHING)
def test_what_shows_what_is_ruled_out_and_what_ran_is_not_said(run, text):
    run(text)
    assert not branches.not_run()


def test_a_function_of_the_scripts_own_counts_and_an_evaluation_is_known_as_one(run):
    run("def validate(): pass\nif step == 100:\n    validate()")
    assert [branch.evaluates for branch in branches.not_run()] == [True]


@pytest.mark.parametrize(
    ("condition", "steps"),
    [
        ("step > after", [3, 4, 5, 6]),  # from then on
        ("step % 500 == 0", [3]),  # once
        ("on and step == after", [3]),
        ("off and step > after", []),  # not what the arguments rule out
    ],
)
def test_a_line_is_reached_after_the_first_steps_as_often_as_its_condition_says(
    run, condition, steps
):
    assert run(f"if {condition}:\n    noted.append(step)", 5) == steps
    assert branches.not_reached() == ([] if steps else ["train.py:5"])


def test_a_line_is_reached_through_all_of_its_conditions_and_past_one_that_leaves(run):
    text = "if step < after:\n    continue\nif on:\n    if step % 500 == 0:\n        "
    assert run(text + "noted.append(step)", 8) == [3]
    assert not branches.not_reached() and not branches.not_run()


def test_the_line_of_a_condition_that_always_held_is_reached_where_it_does_not(run):
    assert run("if step <= after:\n    x = F.relu(x)\nelse:\n    noted.append(step)", 7)
    assert run("if step <= after:\n    x = F.relu(x)\nif x.sum() > 0: noted.append(step)", 4)


def test_a_trial_goes_on_until_two_steps_after_the_line(run):
    run("if step > after:\n    net(x)", 5)
    assert [bool(branches.not_reached(steps)) for steps in (2, 3, 4)] == [True, True, False]
    assert not branches.not_reached()


def test_a_line_that_no_condition_leads_to_is_not_reached(run):
    run("net(x)", 4)
    assert branches.not_reached() == ["train.py:4"]


def test_what_had_both_answers_or_is_asked_all_the_time_is_not_asked_again(run, monkeypatch):
    monkeypatch.setattr(branches, "MOST", 4)
    run("if step > after:\n    net(x)\nif step % 2:\n    net(x)")
    assert branches._known == [True, True] and not branches.not_run()


LATER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

body, head = nn.Linear(1024, 4096).requires_grad_(False).cuda(), nn.Linear(4096, 4).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()])
loader = DataLoader(TensorDataset(torch.randn(64, 1024)), 8)

def validate():
    with torch.no_grad():
        head(body(torch.ones(8, 1024, device="cuda")))

steps = 0
for epoch in range(1, 40):
    if epoch == 50:
        body.requires_grad_(True)
    for (x,) in loader:
        loss = head(body(x.cuda())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 500 == 0:
            validate()
"""


def test_a_trial_says_what_comes_later_in_place_of_an_evaluation_that_was_not_reached(run_trial):
    report = run_trial(LATER, device="imaginary", watches_branches=True).report
    lines = [(row["condition"], row["first_line"], row["evaluates"]) for row in report["not_run"]]
    assert lines == [("epoch == 50", 17, False), ("steps % 500 == 0", 25, True)]
    assert not any("evaluation was not reached" in note for note in report["notes"])


@pytest.mark.parametrize(
    ("line", "trains_all", "evaluates"),
    [(0, False, False), (17, True, False), (25, False, True), (8, False, False)],
)
def test_a_trial_makes_the_steps_after_a_line_that_comes_once_an_epoch(
    run_trial, line, trains_all, evaluates
):
    reach = [f"script.py:{line}"] if line else []
    trial = run_trial(LATER, device="imaginary", watches_branches=True, reach=reach)
    peak = trial.report["phases"]["train"]["allocated_bytes"]
    weights = 4 * 1024 * 4096  # with a gradient and two states once they are trained
    assert (peak > 3 * weights) == trains_all
    assert ("eval" in trial.report["phases"]) == evaluates
    assert trial.report["not_reached"] == (reach if line == 8 else [])
