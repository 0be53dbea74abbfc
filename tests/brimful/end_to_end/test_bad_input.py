"""What goes wrong in a user's command: a clear sentence, its exit code, a record that can be read,
nothing left running.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from brimful.record import read_record
from brimful.values import Outcome
from tests.brimful.end_to_end.helper import (
    TRAINING,
    brimful,
    left_over,
    python,
    script,
    small_disk,
    start,
)

CARD = ("--gpu-memory", "4GiB")


def test_a_script_that_raises_shows_its_own_traceback(tmp_path):
    path = script(
        tmp_path,
        "def explode():\n    raise ValueError('label 37 is not known')\n\nimport "
        "torch\nexplode()\n",
    )
    done = brimful(tmp_path, "audit", "--device", "cpu", "--json", *python(path, "--batch-size", 8))
    assert done.code == done.json["error"]["exit_code"] == 5
    assert "line 2, in explode" in done.err
    assert "label 37 is not known" in done.json["error"]["problem"]
    assert "brimful_inside" not in done.err.split("error:")[0], "the traceback is the script's own"
    assert done.record.closed.exit_code == 5
    assert done.record.trials[0].outcome is Outcome.CRASHED
    assert not left_over(done.home)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("open('missing.json').read()", "FileNotFoundError: [Errno 2] No such file or directory"),
        ("torch.ones(2, 3, device='cuda') @ torch.ones(2, 3, device='cuda')", "RuntimeError: "),
    ],
)
def test_the_traceback_of_an_error_that_passed_through_brimful_shows_the_scripts_frames_alone(
    tmp_path, line, message
):
    path = script(tmp_path, f"import torch\n{line}\n")
    done = brimful(tmp_path, "predict", *CARD, *python(path, "--batch-size", 8), code=5)
    traceback = done.err.split("error:")[0]
    assert f"line 2, in <module>\n    {line}\n" in traceback and message in traceback
    assert "brimful_inside" not in traceback


def test_a_flag_the_script_does_not_know_is_reported_in_argparses_words(tmp_path):
    done = brimful(
        tmp_path,
        "tune",
        "--device",
        "cpu",
        *python(script(tmp_path), "--batch-size", 8, "--warmup", 3),
        code=5,
    )
    assert "unrecognized arguments: --warmup 3" in done.err
    assert "does not know one of its flags" in done.err
    assert len(done.record.trials) == 1


@pytest.mark.parametrize("verb", ["predict", "audit"])
def test_a_script_that_puts_nothing_on_the_card_is_no_misfit_and_told_so(tmp_path, verb):
    source = TRAINING.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"')
    words = python(script(tmp_path, source), "--batch-size", 8)
    done = brimful(tmp_path, verb, *CARD, *words, code=5)
    assert "the script trained on the CPU: it put nothing on the card" in done.err
    assert "fit" not in done.out


def test_a_shell_script_that_overwrites_the_path_keeps_the_probe_out(tmp_path):
    path = script(tmp_path)
    shell = tmp_path / "train.sh"
    shell.write_text(f'#!/bin/sh\nPYTHONPATH=/mine exec {sys.executable} {path} "$@"\n')
    shell.chmod(0o755)
    done = brimful(tmp_path, "predict", *CARD, "--", shell, "--batch-size", 8, code=5)
    assert "could not load its probe" in done.err
    assert "PYTHONPATH=mine:$PYTHONPATH" in done.err


WITH_A_GRANDCHILD = """
import signal, subprocess, sys, time
import torch
from torch import nn
quiet = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
quiet += "print(1, flush=True); time.sleep(600)"
apart = dict(start_new_session=True, stdout=subprocess.PIPE)
left = subprocess.Popen([sys.executable, "-c", quiet], **apart)
left.stdout.readline()
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    print("stepped", flush=True)
    time.sleep(0.2)
"""


STEPPED = "loss.backward(); print('stepped', flush=True)"


def until_it_trains(home: Path, seconds: float = 120) -> Path:
    """Waits until the first trial has stepped; its folder."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for path in home.glob("*/trial-001/stdout.txt"):
            if "stepped" in path.read_text():
                return path.parent
        time.sleep(0.1)
    raise AssertionError("no step was seen")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_signal_in_the_middle_of_a_trial_ends_all_children_and_keeps_the_record(
    tmp_path, number, code
):
    path = script(tmp_path, WITH_A_GRANDCHILD)
    home = tmp_path / "home"
    process = start(tmp_path, "audit", "--device", "cpu", "--steps", 5000, "--json", *python(path))
    try:
        until_it_trains(home)
        assert len(left_over(home)) == 2, "the script and its child in a session of its own"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert json.loads(out)["error"]["exit_code"] == code
    assert "Traceback" not in err
    assert not left_over(home)
    record = read_record("latest", home)
    assert record.closed.exit_code == code
    if code == 130:
        assert record.trials[0].outcome is Outcome.INTERRUPTED


@pytest.fixture
def half_a_mib(tmp_path):
    with small_disk(tmp_path / "disk", "512k") as place:
        yield place


@pytest.mark.parametrize("room", [0, 12_000, 60_000])
def test_a_full_disk_is_reported_and_what_was_written_can_be_read(tmp_path, half_a_mib, room):
    """`room` bytes are left when brimful begins."""
    with open(half_a_mib / "fill", "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        file.truncate(max(0, os.path.getsize(file.name) - room))
    done = brimful(
        tmp_path,
        "predict",
        *CARD,
        "--json",
        *python(script(tmp_path), "--batch-size", 8),
        home=half_a_mib / "home",
        code=1,
    )
    assert "disk is full" in done.err
    assert "Traceback" not in done.err
    assert done.json["error"]["code"] == "disk-full"
    for record in half_a_mib.glob("home/*/record.jsonl"):
        data = record.read_bytes()
        assert not data or data.endswith(b"\n")


def test_the_batch_size_inside_the_script_is_found_and_varied(tmp_path):
    source = TRAINING.replace("args = parser.parse_args()", "import brimful").replace(
        "batch_size=args.batch_size", "batch_size=brimful.setting('batch_size', 64)"
    )
    done = brimful(tmp_path, "predict", *CARD, "--json", *python(script(tmp_path, source)), code=0)
    sizes = {sample.trial.settings["batch_size"] for sample in done.record.trials}
    assert len(sizes) >= 2
    assert {sample.samples_per_step for sample in done.record.trials} == sizes, (
        "the loader gave what was planned"
    )
    assert done.json["batch_size"] == done.json["largest_batch_size"] == 512


def test_hydras_keys_a_path_with_spaces_and_another_folder(tmp_path):
    source = TRAINING.replace(
        'parser.add_argument("--batch-size", type=int, default=8)',
        'parser.add_argument("pairs", nargs="*")',
    )
    source = source.replace(
        "args.batch_size", "int(dict(p.split('=') for p in args.pairs)['data.batch_size'])"
    )
    path = script(tmp_path / "my project", source, name="my train.py")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = brimful(
        tmp_path,
        "audit",
        "--device",
        "cpu",
        "--json",
        *python(path, "data.batch_size=16", "model=small"),
        cwd=elsewhere,
        code=0,
    )
    assert done.json["requested"]["batch_size"] == 16
    assert done.json["effective"]["loader_batch_size"] == 16
    assert not list(elsewhere.iterdir()), "nothing is left in the folder it was called in"


def test_a_trial_does_not_outlive_a_brimful_that_is_killed(tmp_path):
    path = script(
        tmp_path,
        TRAINING.replace(
            "for features, targets in loader:",
            "import itertools\nfor features, targets in "
            "itertools.chain.from_iterable(itertools.repeat(loader)):",
        ).replace("loss.backward()", STEPPED),
    )
    process = start(
        tmp_path, "audit", "--device", "cpu", "--steps", 10_000_000, "--json", *python(path)
    )
    try:
        until_it_trains(tmp_path / "home")
        assert left_over(tmp_path / "home")
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    while left_over(tmp_path / "home") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left_over(tmp_path / "home")
