"""The command line: what is typed wrongly gets a clear sentence and its exit code, before any trial
is started.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from brimful.cli import app
from brimful.errors import Terminated

TRAIN = ["--", "my-train", "--batch-size"]


def brimful(*words: str, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "brimful", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


@pytest.mark.parametrize("size", ["-1", "1.5"])
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "--gpu", "a100-40gb", *TRAIN, "SIZE"],
        ["audit", "--device", "cpu", *TRAIN, "SIZE"],
        ["tune", "--device", "cpu", *TRAIN, "SIZE"],
        ["predict", "--gpu", "a100-40gb", "--set", "batch_size=SIZE", *TRAIN, "{batch_size}"],
        ["audit", "--device", "cpu", "--set", "batch_size=SIZE", *TRAIN, "{batch_size}"],
        ["tune", "--device", "cpu", "--max-batch-size=SIZE", *TRAIN, "8"],
    ],
)
def test_what_is_no_batch_size_is_quoted_and_nothing_is_run(typed, tmp_path, words, size):
    code, _, err = typed(*[word.replace("SIZE", size) for word in words])
    assert code == 2 and repr(size) in err and "whole number" in err
    assert not list(tmp_path.glob("home/*/trial-*"))


@pytest.mark.parametrize(
    ("sides", "says"),
    [
        (["batch_size="], "--grid batch_size=: a value is missing"),
        (["batch_size=1,,2"], "a value is missing"),
        (["a,b"], "a side of a table is name=value,value"),
        (["batch size=1,2"], "a side of a table is name=value,value"),
        (["batch-size=1,2", "batch_size=4"], "--grid batch_size was given twice"),
        (
            ["max-depth=1,2"],
            "you asked about max_depth, and the command has no {max_depth} and no --max-depth",
        ),
        (["batch_size=0,1"], "The batch size '0' is too small."),
        (["batch_size=-4,1"], "The batch size '-4' is too small."),
        (["batch_size=a,b"], "The batch size 'a' is not a whole number."),
        (["batch_size=1,2", "batch_size=4"], "--grid batch_size was given twice"),
        (["batch_size=1,2,1"], "has 1 twice"),
        (["depth=1,2"], "you asked about depth, and the command has no {depth}"),
        (["batch_size=1", "lr=1,2", "depth=3"], "a grid of 3 settings"),
        (["batch_size=" + ",".join(map(str, range(1, 402)))], "a grid of 401 combinations"),
    ],
)
def test_a_grid_that_makes_no_sense_is_reported_and_nothing_is_run(typed, tmp_path, sides, says):
    words = [word for side in sides for word in ("--grid", side)]
    code, _, err = typed("predict", "--gpu", "a100-40gb", *words, *TRAIN, "{batch_size}")
    assert code == 2 and says in err.replace("\n", " ")
    assert not list(tmp_path.glob("home/*/trial-*"))


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("0%", "no share"),
        ("101%", "no share"),
        ("nan%", "no share"),
        ("-3GiB", "no amount of memory"),
        ("nonsense", "no amount of memory"),
        ("0", "no memory at all"),
        ("100TiB", "more than a100-40gb's 39.4 GiB"),
    ],
)
def test_what_is_no_budget_is_reported(typed, budget, expected):
    code, _, err = typed("predict", "--gpu", "a100-40gb", f"--budget={budget}", *TRAIN, "8")
    assert code == 2 and expected in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["tune", "--device", "cpu", "--budget", "900TiB", *TRAIN, "8"],
            "more than this machine's",
        ),
        (["predict", *TRAIN, "8"], "no card was named"),
        (["request", "--for", "pbs", *TRAIN, "8"], "it knows slurm, skypilot, ray, kubernetes"),
        (["request", *TRAIN, "{batch_size}"], "the batch size is left open"),
        (["request", "--for", "slurm"], "no command was given"),
        (["predict", "--gpu", "t4", "--gpu-memory", "4GiB", *TRAIN, "8"], "two different cards"),
        (["predict", "--gpu", "t4"], "no command was given"),
        (["predict", "--gpu", "t4", "--"], "no command was given"),
        (["predict", "--gpuu", "t4", *TRAIN, "8"], "--gpuu"),
        (["predict", "--gpu", "t4", "--reach", "a.py", *TRAIN, "8"], "a line of the script"),
        (
            ["predict", "--gpu", "t4", "--snapshot", "none/peak.pickle", *TRAIN, "8"],
            "none/peak.pickle cannot be written: No such file or directory",
        ),
        (
            ["predict", "--gpu", "t4", "--snapshot", "/", *TRAIN, "8"],
            "/ cannot be written: Is a directory",
        ),
        (
            ["predict", "--gpu", "t4", "--snapshot", "/proc/version", *TRAIN, "8"],
            "name a file in a folder that is there and that you may write to",
        ),
        (["predict", "--gpu", "t4", "--batch-size", "8", *TRAIN, "8"], "--set batch_size=64"),
        (["pedict"], "predict"),
        (["tune", "--device", "tpu", *TRAIN, "8"], "auto, cpu or accelerator"),
        (
            ["tune", "--device", "cpu", "--objective", "best", *TRAIN, "8"],
            "Choose from",
        ),
        (
            [
                "tune",
                "--device",
                "cpu",
                "--batch-size-from",
                "flag",
                "--",
                "my-train",
                "--epochs",
                "3",
            ],
            "{batch_size}",
        ),
        (["audit", "--steps", "0", *TRAIN, "8"], "whole number"),
        (["audit", "--steps", "1.5", *TRAIN, "8"], "--steps 1.5"),
        (["audit", "--time-limit", "soon", *TRAIN, "8"], "'soon'"),
        (["audit", "--set", "lr", *TRAIN, "8"], "name=value"),
        (
            ["audit", "--device", "cpu", *TRAIN, "8", "--lr", "{lr}"],
            "holds {lr} and nothing sets it",
        ),
        (["predict", "--gpu", "t4", *TRAIN, "8", "--lr", "{lr}"], "nothing sets it"),
        (["gpus", "--", "my-train"], "runs no command"),
        (["doctor", "--host-policy"], "brimful doctor --host-policy -- python train.py"),
        (["doctor", *TRAIN, "8"], "brimful doctor --host-policy -- python train.py"),
        (["doctor", "--steps", "3"], "--host-policy and a command belong together"),
        (["doctor", "--calibrate", "--host-policy", *TRAIN, "8"], "belong together"),
        (
            ["predict", "--gpu", "t4", "--solve", "max-length", *TRAIN, "8"],
            "you asked about max_length",
        ),
        (
            ["predict", "--gpu", "t4", "--solve", "lr", "--grid", "batch_size=1,2", *TRAIN, "8"],
            "--solve lr together with --grid",
        ),
        (
            ["predict", "--gpu", "t4", "--solve", "lr", "--set", "lr=7", *TRAIN, "8"],
            "--set lr=7 together with --solve",
        ),
        (
            ["predict", "--gpu", "l4,t4", "--grid", "batch_size=1,2", *TRAIN, "8"],
            "--grid for 2 cards",
        ),
        (["report"], "no record 'latest'"),
        (["report", "nothere"], "no record 'nothere'"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_with_a_sentence(typed, words, expected):
    code, out, err = typed(*words)
    assert (code, out) == (2, "") and expected in err
    assert err.startswith("error: ") or "\nerror: " in err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            "predict --gpu a100-40gb python train.py --batch-size 64",
            "brimful predict --gpu a100-40gb -- python train.py --batch-size 64",
        ),
        ("audit --details python train.py", "brimful audit --details -- python train.py"),
        (
            "tune --steps 3 python train.py -- --batch-size 8",
            "brimful tune --steps 3 -- python train.py --batch-size 8",
        ),
        ("python train.py", "brimful predict --gpu a100-40gb -- python train.py"),
        ("-- python train.py", "brimful predict --gpu a100-40gb -- python train.py"),
    ],
)
def test_a_command_without_its_dashes_or_verb_is_printed_on_one_line_as_it_is_typed(
    typed, words, line
):
    code, out, err = typed(*words.split())
    assert (code, out) == (2, "") and err.splitlines()[-1] == line


def test_a_command_in_quotes_is_printed_without_them(typed, tmp_path):
    words = ["predict", "--gpu", "a100-40gb", "--", "python train.py --name 'a b' --batch-size 64"]
    code, _, err = typed(*words)
    assert code == 2 and "your command is one word in quotes" in err
    assert err.splitlines()[-1] == f"brimful predict --gpu a100-40gb -- {words[-1]}"
    assert not list(tmp_path.glob("home/*")), "nothing was tried"
    spaced = tmp_path / "my train"
    spaced.write_text("#!/bin/sh\nexit 3\n")
    spaced.chmod(0o755)
    assert typed("audit", "--device", "cpu", "--", str(spaced))[0] == 5, "a path may hold a space"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "--gpu", "t4", "--budget", "-5GiB", *TRAIN, "8"], "'-5GiB' is no amount of"),
        (["audit", "--steps", "-3", *TRAIN, "8"], "--steps -3\n  it takes a whole number"),
        (["predict", "--gpu", "--details", *TRAIN, "8"], "error: --gpu has no value"),
        (["predict", "--ranks", "x", *TRAIN, "8"], '--ranks: "x" is no whole number'),
        (["report", "one", "two"], "more words than it takes: 'two'"),
        (["tune", "--gpu", "t4"], "see `brimful tune --help`"),
        (
            ["predict", "--gpu", "t4", "--set", "batchsize=8", "--", "train.py"],
            "did you mean batch_size?",
        ),
    ],
)
def test_a_value_that_is_none_is_refused_in_plain_words(typed, tmp_path, words, says):
    (tmp_path / "train.py").write_text("print('a script')\n")
    code, _, err = typed(*words)
    assert code == 2 and says in err


def test_a_setting_that_reaches_nothing_is_refused(typed, tmp_path):
    (tmp_path / "train.py").write_text("print('no flags')\n")
    code, _, err = typed(
        "audit",
        "--device",
        "cpu",
        "--set",
        "lr=3",
        "--",
        sys.executable,
        "train.py",
        "--batch-size",
        "8",
    )
    assert code == 2 and "no {lr}" in err
    (tmp_path / "train.py").write_text("import brimful\nbrimful.setting('lr', 1.0)\n")
    code, _, err = typed(
        "audit", "--device", "cpu", "--set", "lr=3", "--", "no-such-program", "train.py"
    )
    assert "no {lr}" not in err, "a script that asks brimful may ask for it"


def test_no_such_command_is_a_sentence_and_the_record_is_closed_with_it(typed, tmp_path):
    code, _, err = typed("audit", "--device", "cpu", "--", "pythn", "train.py")
    assert code == 2 and "there is no command 'pythn'" in err
    (record,) = tmp_path.glob("home/*/record.jsonl")
    assert json.loads(record.read_text().splitlines()[-1])["exit_code"] == 2


def test_errors_are_data_with_json_and_sentences_stay_on_standard_error(typed):
    code, out, err = typed("predict", "--gpu", "a100-41gb", "--json", *TRAIN, "8")
    shown = json.loads(out)
    assert code == shown["error"]["exit_code"] == 4
    assert shown["error"]["code"] == "no-such-device"
    assert set(shown["error"]) == {"code", "exit_code", "problem", "explanation", "suggestion"}
    assert shown["schema"] == 2
    assert shown["error"]["problem"] in err and "a100-40gb" in err and "brimful gpus" in err


def test_a_sentence_off_a_terminal_is_one_line(typed):
    _, _, err = typed(
        "audit", "--device", "cpu", "--", "/a/rather/long/path" * 10 + "/python", "train.py"
    )
    line = next(line for line in err.splitlines() if line.startswith("error: "))
    assert len(line) > 200
    assert all(line == line.rstrip() for line in err.splitlines()), "no padding"


def test_words_after_the_dashes_are_never_read_as_ours(typed):
    code, out, _ = typed(
        "predict", "--gpu", "nope", "--", "my-train", "--json", "--batch-size", "8"
    )
    assert (code, out) == (4, "")


@pytest.mark.parametrize("verb", ["predict", "request", "audit", "tune", "run"])
def test_the_help_of_a_verb_shows_how_that_verb_takes_a_command(typed, verb):
    code, out, _ = typed(verb, "--help")
    assert code == 0 and f"Your own command follows two dashes: brimful {verb} " in " ".join(
        out.split()
    )


@pytest.mark.parametrize(
    ("words", "said", "code"),
    [
        (("gpus",), b"", 0),
        (("report", "nothing-of-that-name", "--json"), b".*no record.*", 2),
    ],
    ids=["no error", "an error keeps its words and its exit code"],
)
def test_a_reader_that_has_gone_makes_no_error_of_its_own(words, said, code):
    process = brimful(*words)
    process.stdout.close()
    written = process.stderr.read()
    assert re.fullmatch(said, written, re.DOTALL | re.IGNORECASE) and b"Traceback" not in written
    assert process.wait(60) == code


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_on_a_full_disk_is_reported_and_is_no_defect(unbuffered: str):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "brimful", "gpus"],
            stdout=full,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 1
    assert "disk is full" in done.stderr and "Traceback" not in done.stderr


def test_a_defect_of_ours_shows_where_and_is_exit_code_1(typed, monkeypatch):
    monkeypatch.setattr(app, "parse", lambda *_: 1 / 0)
    code, _, err = typed("gpus")
    assert code == 1 and "ZeroDivisionError" in err and "defect of brimful" in err


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143), (SystemExit(7), 7)]
)
def test_signals_have_their_own_exit_codes(typed, monkeypatch, raised, code):
    monkeypatch.setattr(app, "parse", Mock(side_effect=raised))
    assert typed("gpus")[0] == code


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_closing_terminal_ends_it_but_not_under_nohup(typed, monkeypatch, handler):
    def parse(*_):
        signal.raise_signal(signal.SIGHUP)
        raise SystemExit(0)

    signal.signal(signal.SIGHUP, handler)
    monkeypatch.setattr(app, "parse", parse)
    assert typed("gpus")[0] == (143 if handler is signal.SIG_DFL else 0)


def test_report_writes_a_page_text_and_markdown_of_the_latest_record(typed, tmp_path):
    typed("audit", "--device", "cpu", "--", "pythn", "train.py")
    code, out, _ = typed("report")
    assert code == 0
    assert "<html" in Path(out.strip()).read_text()
    assert typed("report", "--format", "text")[0] == 0
    for format, ending in {"md": ".md", "text": ".text"}.items():
        page = Path(json.loads(typed("report", "--format", format, "--json")[1])["page"])
        assert page.suffix == ending and "pythn" in page.read_text()
    text = tmp_path / "record.txt"
    assert typed("report", "--format", "text", "--out", str(text))[1].strip() == str(text)
    assert "pythn" in text.read_text()
    no_such = str(tmp_path / "no" / "such" / "page.html")
    for words, said in ((("--format", "pdf"), "html, md or text"), (("--out", no_such), "--out")):
        code, _, err = typed("report", *words)
        assert code == 2 and said in err


def test_an_ascii_terminal_is_no_reason_to_fail(tmp_path):
    script = tmp_path / "trän.py"
    script.write_text("raise SystemExit(3)\n")
    environment = {
        **os.environ,
        "PYTHONIOENCODING": "ascii",
        "BRIMFUL_HOME": str(tmp_path / "home"),
    }
    process = brimful(
        "audit", "--device", "cpu", "--", sys.executable, str(script), env=environment
    )
    assert b"Traceback" not in process.communicate()[1]
    assert process.returncode == 5
    process = brimful("report", "--format", "text", env=environment)
    assert b"UnicodeEncodeError" not in process.communicate()[1]
    assert process.returncode == 0


def test_a_closed_standard_output_is_that_of_a_service_and_no_error():
    for closed in ((0,), (1,), (0, 1, 2)):
        child = brimful("gpus", preexec_fn=lambda: [os.close(number) for number in closed])  # noqa: B023
        assert child.communicate(timeout=60)[1] == b"" and child.returncode == 0


def test_a_working_folder_that_is_gone_is_a_sentence_and_nothing_is_started(tmp_path):
    (tmp_path / "gone").mkdir()
    environment = {name: text for name, text in os.environ.items() if name != "BRIMFUL_HOME"}
    child = brimful(
        *("monitor", "--once", "--json"),
        cwd=tmp_path / "gone",
        preexec_fn=lambda: os.rmdir(tmp_path / "gone"),
        env=environment,
    )
    out, err = child.communicate(timeout=60)
    assert child.returncode == 2 and b"Traceback" not in err, err
    assert json.loads(out)["error"]["exit_code"] == 2


@pytest.mark.parametrize("verb", ["run", "audit"])
def test_the_working_folder_is_missed_by_what_runs_a_command(typed, tmp_path, monkeypatch, verb):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    monkeypatch.setattr("brimful.measure.accelerators._answer", lambda python, question: None)
    code, _, err = typed(verb, "--device", "cpu", "--", "true")
    assert code == 2 and "The working folder is not there any more." in err
    assert not list(tmp_path.glob("home/*"))


@pytest.mark.parametrize(("has_torch", "leaves"), [(False, True), (True, False)])
def test_the_python_of_a_command_under_uvx_is_the_users(monkeypatch, has_torch, leaves):
    ours = str(Path(sys.prefix) / "bin")
    monkeypatch.setenv("UV", "/usr/bin/uv")
    monkeypatch.setenv("PATH", f"{ours}:/usr/bin")
    monkeypatch.setattr("brimful.cli.app.find_spec", lambda name: has_torch or None)
    app.run(["--version"])
    assert os.environ["PATH"] == ("/usr/bin" if leaves else f"{ours}:/usr/bin")
