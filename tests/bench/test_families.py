"""The committed rows, and made ones."""

import pytest

from bench import accuracy, families, timm_rows
from bench.families import Run
from brimful.decide.memory.intervals import committed_evidence


def test_no_family_of_the_kept_rows_lies_outside_of_the_intervals_that_the_others_make(capsys):
    assert families.main() == 0
    assert "70 families           1181" in capsys.readouterr().out


def test_what_intervals_rest_on_is_what_the_kept_rows_make():
    committed = {
        bench.situation: (bench.low_error, bench.high_error) for bench in committed_evidence()
    }
    for runs, ends in (
        (families.timm_runs(), accuracy.ends_by_families),
        (families.sharded_runs(), accuracy.ends_of_few),
    ):
        for situation in {run.situation for run in runs}:
            of = [run for run in runs if run.situation == situation]
            assert committed[situation] == ends(
                [run.error for run in of], [run.family for run in of]
            )


def runs_of(errors: list[float], family: str = "odd") -> list[Run]:
    """Of a family with these errors, beside twenty whose runs all lie within 2 %."""
    others = [
        Run(f"net{number}", "workspaces", error) for number in range(20) for error in (-0.02, 0.02)
    ]
    return [*others, *(Run(family, "workspaces", error) for error in errors)]


@pytest.mark.parametrize(
    ("errors", "holds"),
    [
        ([0.01] * 4 + [0.3], True),  # one run
        ([0.01] * 98 + [0.3] * 2, False),  # 2 % above
        ([0.01] * 198 + [0.3] * 2, True),
        ([0.01] * 94 + [-0.3] * 6, True),
        ([0.01] * 93 + [-0.3] * 7, False),
    ],
)
def test_a_family_holds_by_its_shares_and_one_run_of_few_may_lie_outside(errors, holds):
    judged = families.judge(runs_of(errors), accuracy.ends_by_families)["odd"]
    assert len(judged) == len(errors) and families.holds(judged) is holds


def test_the_check_fails_and_names_the_family_that_does_not_hold(monkeypatch, capsys):
    monkeypatch.setattr(families, "timm_runs", lambda: runs_of([0.2] * 3))
    assert families.main() == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "does not hold" in line)
    assert line.startswith("odd") and line.split()[1:5] == ["3", "0.0%", "100.0%", "100.0%"]


def test_a_family_is_the_front_of_a_name_without_marks_and_versions():
    names = (
        "resnet18",
        "legacy_seresnet50",
        "resnetv2_50",
        "tf_efficientnetv2_b0",
        "efficientnet_b0",
    )
    names += ("convnextv2_tiny", "convnext_tiny", "convit_tiny", "vit_base", "eva02_large")
    expected = ["resnet"] * 3 + ["efficientnet"] * 2 + ["convnext"] * 2 + ["convit", "vit", "eva"]
    assert [timm_rows.families(names)[name] for name in names] == expected
