"""`brimful run` as it is typed: wrong words are shown before anything is started, and exit codes
say how it ended.
"""

import json
import subprocess
import sys
from contextlib import closing

import pytest

from brimful.codec import SCHEMA
from brimful.command import parse
from brimful.measure.process_tree import LOOK_NEAR_LIMIT_S
from brimful.record import RecordWriter
from brimful.values import Device, EffectiveSetting, Objective, Opened, Plan, Source

RUN = ("run", "--device", "cpu")


def run_here(script: str, *options: str, **more) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "brimful", *RUN, *options, "--", sys.executable, "-c", script]
    return subprocess.run(words, capture_output=True, text=True, check=False, **more)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("run", "--gpu", "h100", "--", "train"), "computes nothing"),
        (("run", "--gpu-memory", "20GiB", "--", "train"), "computes nothing"),
        ((*RUN, "--max-restarts", "-1", "--", "train"), "max-restarts"),
        ((*RUN, "--max-restarts", "many", "--", "train"), "whole number"),
        ((*RUN, "--grace", "long", "--", "train"), "long"),
        ((*RUN, "--host-limit", "much", "--", "train"), "much"),
        ((*RUN, "--set", "batch_size=0", "--", "train", "{batch_size}"), "'0'"),
        ((*RUN, "--resume-with", "--resume", "--", "train"), "no {resume}"),
        ((*RUN, "--", "train", "{resume}"), "--resume-with"),
        ((*RUN, "--resume-with", "'open", "--", "train", "{resume}"), "quotation"),
        ((*RUN, "--", "train", "{lr}"), "{lr}"),
        ((*RUN, "--plan", "latest", "--", "train"), "--plan latest"),
        (RUN, "no command"),
        (("run", "--device", "tpu", "--", "train"), "tpu"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(typed, tmp_path, words, expected):
    code, out, err = typed(*words)
    assert (code, out) == (2, "") and expected in err
    assert not (tmp_path / "home").exists()


def test_a_plan_that_does_not_belong_ends_with_6_and_what_to_do(typed, tmp_path):
    opened = Opened(
        SCHEMA,
        "20261121-120000-tune-x",
        "tune",
        (),
        parse(("other",)),
        Device("cpu", "cpu"),
        None,
        1.0,
    )
    with closing(RecordWriter.create(tmp_path / "home", opened)) as writer:
        rows = (EffectiveSetting("batch_size", 64, 512, "the fastest", Source.MEASURED),)
        writer.append(Plan(Objective.THROUGHPUT, rows, "", True, 3, 0))
    code, out, err = typed(*RUN, "--json", "--plan", "20261121", "--", "train")
    assert code == json.loads(out)["error"]["exit_code"] == 6 and "its settings by --set" in err
    assert json.loads(out)["error"]["code"] == "plan-mismatch"


@pytest.mark.parametrize(
    ("script", "code", "expected"),
    [
        ("print('data')", 0, "exited with 0"),
        ("import sys; sys.exit(3)", 5, "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", 5, "signal 9): killed, "),
    ],
)
def test_the_exit_code_says_how_it_ended_and_standard_output_is_the_commands_own(
    tmp_path, script, code, expected
):
    done = run_here(script)
    assert done.returncode == code, done.stderr
    assert done.stdout == ("data\n" if code == 0 else "")
    assert expected in " ".join(done.stderr.split())


def test_what_is_piped_into_brimful_reaches_the_command(tmp_path):
    done = run_here("print(input())", "--json", input="from outside\n")
    assert "from outside" in done.stderr
    assert json.loads(done.stdout)["ended"]["exit_code"] == 0


def test_the_help_says_how_often_brimful_checks_the_host_limit(typed):
    code, out, _ = typed("run", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert code == 0 and f"every {LOOK_NEAR_LIMIT_S:g} s" in words
