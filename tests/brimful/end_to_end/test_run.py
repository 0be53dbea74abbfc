"""`brimful run` as a user types it, with real trainings in processes of their own."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from brimful.record import read_record
from tests.brimful.end_to_end.helper import (
    brimful,
    environment,
    left_over,
    python,
    script,
    small_disk,
    start,
    torchrun,
)

TRAINING = """
import argparse, os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accumulation", type=int, default=1)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--most", type=int, default=1000)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--out", default="model.pt")
args = parser.parse_args()
torch.manual_seed(0)
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 1))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
inputs = torch.randn(96, 16)
data = TensorDataset(inputs, inputs.mean(1, keepdim=True))
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
print("resumed", os.path.exists(args.out) if args.resume else None, flush=True)
for epoch in range(args.epochs):
    model.train()
    for number, (x, y) in enumerate(loader):
        if args.batch_size > args.most and number == 1 and rank == ranks - 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss = nn.functional.mse_loss(model(x), y)
        (loss / args.accumulation).backward()
        if (number + 1) % args.accumulation == 0:
            optimizer.step(); optimizer.zero_grad()
        if rank == 0:
            print(loss.item().hex())
    if rank == 0:
        torch.save(model.state_dict(), args.out)
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(TensorDataset(inputs, inputs), batch_size=48):
            model(x)
if ranks > 1:
    torch.distributed.destroy_process_group()
"""
SLOWLY = """
import os, signal, sys, time
import torch
weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
def save(number, frame):
    with open("saved.txt", "w") as file:
        for part in range(10):
            file.write(f"{part}\\n"); file.flush(); time.sleep(0.1)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
signal.signal(signal.SIGINT, save)
for step in range(10**6):
    (weight ** 2).sum().backward(); optimizer.step()
    if step == 5:
        print("training", flush=True)
    time.sleep(0.01)
"""
RUN = ("run", "--device", "cpu")


def losses(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("0x", "-0x"))]


def test_losses_are_the_same_bit_for_bit_and_files_are_the_users_own(tmp_path):
    path = script(tmp_path, TRAINING)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    done = brimful(tmp_path, *RUN, *python(path, "--out", "ours/model.pt"))
    plainly = [sys.executable, str(path), "--out", "theirs/model.pt"]
    plain = subprocess.run(
        plainly, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.code == 0, done.err
    assert len(losses(done.out)) == 24
    assert done.out == plain.stdout
    assert (tmp_path / "ours/model.pt").read_bytes() == (tmp_path / "theirs/model.pt").read_bytes()
    (attempt,) = done.record.run.attempts
    assert (attempt.steps, attempt.samples, set(attempt.phases)) == (
        24,
        192,
        {"setup", "train", "eval"},
    )
    assert attempt.samples_per_s > 0
    assert attempt.peak.host_bytes > 50 << 20


@pytest.mark.heavy
def test_out_of_memory_goes_on_smaller_with_the_same_effective_batch_and_resumes(tmp_path):
    path = script(tmp_path, TRAINING)
    words = (
        "--batch-size",
        "{batch_size}",
        "--accumulation",
        "{accumulation}",
        "--most",
        "12",
        "{resume}",
    )
    done = brimful(
        tmp_path,
        *RUN,
        "--json",
        "--set",
        "batch_size=24",
        "--resume-with",
        "--resume",
        *python(path, *words),
        code=0,
    )
    assert [
        {s["name"]: s["effective"] for s in attempt["settings"]}
        for attempt in done.json["attempts"]
    ] == [{"batch_size": 24, "accumulation": 1}, {"batch_size": 12, "accumulation": 2}]
    assert [attempt["resumed"] for attempt in done.json["attempts"]] == [None, True]
    assert done.json["attempts"][0]["outcome"] == "out_of_device_memory"
    assert "OutOfMemoryError" in done.json["attempts"][0]["failure"]["type"]
    assert (
        "resumed True" not in done.out
    )  # with --json the command's own output is on standard error
    assert "resumed False" in done.err


@pytest.mark.heavy
def test_of_several_ranks_the_one_that_ran_out_is_named_and_all_start_again(tmp_path):
    path = script(tmp_path, TRAINING)
    words = ("--batch-size", "{batch_size}", "--most", "12")
    done = brimful(
        tmp_path, *RUN, "--json", "--set", "batch_size=24", *torchrun(path, *words), code=0
    )
    first, second = done.json["attempts"]
    assert (first["outcome"], first["failed_rank"]) == ("out_of_device_memory", 1)
    assert (second["outcome"], second["samples"]) == ("completed", 2 * 192)
    assert len(done.record.run.attempts[1].reports) == 2
    assert second["phases"]["train"]["host_bytes"] > 100 << 20
    assert left_over(done.home) == []


@pytest.mark.heavy
def test_a_scripts_own_failure_ends_with_its_traceback_once_and_code_5(tmp_path):
    done = brimful(
        tmp_path, *RUN, *python(script(tmp_path, TRAINING + "raise KeyError('of mine')\n")), code=5
    )
    assert done.err.count("Traceback (most recent call last)") == 1
    assert "KeyError: 'of mine'" in done.err
    assert len(done.record.run.attempts) == 1


ENGINE = """
import sys
import torch
from brimful_train import Arrays, BatchingConfig, Config, Task, exit_codes, fit
steps, batch_size, epochs = int(sys.argv[1]), int(sys.argv[2]), 1
seen = 0
def loss(model, batch):
    global seen
    seen += 1
    if seen > steps:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return model(batch[0]).square().mean()
model = torch.nn.Linear(4, 1)
with exit_codes():
    config = Config(out="out", device="cpu", batch=BatchingConfig(batch_size))
    fit(Task("t", model, loss, Arrays(torch.ones(64, 4))), config)
"""


@pytest.mark.heavy
def test_an_engine_for_which_not_one_sample_fits_is_not_started_again_with_a_smaller_batch(
    tmp_path,
):
    done = brimful(
        tmp_path,
        *RUN,
        "--json",
        "--set",
        "batch_size=8",
        *python(script(tmp_path, ENGINE), "2", "{batch_size}"),
        code=3,
    )
    (attempt,) = done.json["attempts"]
    assert (attempt["outcome"], attempt["exit_code"]) == ("out_of_device_memory", 3)
    assert "A single sample does not fit" in done.json["ended"]["message"]
    assert "No smaller batch size would help" in done.json["ended"]["message"]


def until_it_trains(process: subprocess.Popen) -> None:
    for line in process.stdout:
        if line.strip() == "training":
            return
    raise AssertionError(process.communicate())


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_to_brimful_lets_the_script_write_its_checkpoint_to_the_end(
    tmp_path, number, code
):
    process = start(tmp_path, *RUN, *python(script(tmp_path, SLOWLY)))
    until_it_trains(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert (tmp_path / "saved.txt").read_text().split() == [str(n) for n in range(10)]
    record = read_record("latest", tmp_path / "home")
    assert (record.run.ended.exit_code, record.run.attempts[0].exit_code) == (code, 0)
    assert record.run.attempts[0].steps > 5 or record.run.attempts[0].reports
    assert left_over(tmp_path / "home") == []


@pytest.mark.heavy
def test_a_brimful_that_is_killed_takes_its_script_along_and_lets_it_save(tmp_path):
    process = start(tmp_path, *RUN, *python(script(tmp_path, SLOWLY)))
    until_it_trains(process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while left_over(tmp_path / "home") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_over(tmp_path / "home") == []
    assert len((tmp_path / "saved.txt").read_text().split()) == 10
    record = read_record("latest", tmp_path / "home")
    assert record.run is not None and record.run.ended is None


def test_on_a_terminal_the_script_has_one_and_brimfuls_line_leaves_its_progress_bar_whole(tmp_path):
    """brimful's line is erased before the script's next words, and not drawn while a progress bar
    has no newline.
    """
    path = script(
        tmp_path,
        """
        import pathlib, sys, time
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
        words = f"terminal {sys.stdout.isatty()} {sys.stderr.isatty()}\\n"
        # at once, so that no line of brimful's comes between
        sys.stderr.write(words + "\\rbar 0"); sys.stderr.flush()
        for n in range(1, 8):
            sys.stderr.write(f"\\rbar {n}"); sys.stderr.flush(); time.sleep(0.4)
        """,
    )
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "brimful", *RUN, *python(path)],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        stdin=inner,
        stdout=inner,
        stderr=inner,
        close_fds=True,
    )
    os.close(inner)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(outer, 65536):
            seen += data
            if b"no step yet" in seen:
                (tmp_path / "go").touch()
    os.close(outer)
    assert process.wait(timeout=60) == 0
    assert b"terminal True True" in seen
    assert b"".join(b"\rbar %d" % n for n in range(8)) in seen
    assert seen.index(b"no step yet") < seen.rindex(b"\x1b[2K") < seen.index(b"terminal True True")


@pytest.mark.heavy
def test_a_disk_that_is_full_ends_no_training(tmp_path):
    path = script(tmp_path, TRAINING + "for n in range(1000): print('x' * 999)\nprint('the end')\n")
    with small_disk(tmp_path / "small", "256k") as place:
        done = brimful(tmp_path, *RUN, *python(path), home=place / "home", code=0)
    assert done.out.endswith("the end\n")
    assert "could not be kept" in done.err
