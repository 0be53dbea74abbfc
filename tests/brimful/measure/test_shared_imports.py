"""Trials whose processes are forked from one that has imported what the script imports."""

import json
import os
import signal
import sys

import psutil
import pytest

from brimful.measure.gpus import find_gpu
from brimful.measure.shared_imports import SharedImports, words_to_script
from brimful.measure.trial import run_trial
from brimful.values import Command, Device, Outcome, Trial, TrialKind
from brimful_inside.wire import Ends

LIBRARY = """
import os
PID = os.getpid()
open("made-by-import.txt", "w").write("x")
"""
SCRIPT = """
import heavy_library
import json, os, sys
seen = {"imported": heavy_library.PID, "pid": os.getpid()}
seen["argv"], seen["original"] = sys.argv[1:], sys.orig_argv[2:]
seen["session"] = os.getsid(0)
seen["made"], seen["mine"] = os.path.exists("made-by-import.txt"), os.environ.get("MINE")
seen["folder"] = os.getcwd()
seen["config"] = json.load(open(os.environ["BRIMFUL_TRIAL_CONFIG"]))["settings"]
open("out.txt", "a").write("written")
seen["text"] = open("out.txt").read()
print(json.dumps(seen))
sys.exit(int(sys.argv[1]) % 7)
"""

TRAINING = """
import os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

size, workers = int(sys.argv[1]), int(os.environ.get("WORKERS", 0))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    data = TensorDataset(torch.randn(96, 64))
    for x, in DataLoader(data, batch_size=size, num_workers=workers, shuffle=True):
        model.train()
        loss = model(x.cuda()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        data = TensorDataset(torch.randn(40, 64))
        for x, in DataLoader(data, batch_size=20, num_workers=workers):
            model(x.cuda()).sum().item()
"""


ASKS = """
import json
import torch
from torch import nn
from torch.nn import functional as F

model = nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256)).cuda().half()
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    begin.record()
    x = model(torch.randn(512, 256).cuda().half()).view(4, 8, 128, 32)
    F.scaled_dot_product_attention(x, x, x, is_causal=True).float().square().mean().backward()
    optimizer.step()
    end.record()
asked = torch.cuda.get_device_properties(0)
print(json.dumps({
    "properties": repr(asked), "capability": torch.cuda.get_device_capability(),
    "bf16": torch.cuda.is_bf16_supported(), "memory": torch.cuda.mem_get_info(),
    "arch": torch.cuda.get_arch_list(), "ms": begin.elapsed_time(end),
}), flush=True)
"""


class Commands:
    """A script beside a library, as trials of one session run it."""

    def __init__(self, folder, imports):
        self.folder, self.imports, self.count = folder, imports, 0

    def run(self, value, script="script.py", imports=True, watch=lambda _: None, **more):
        self.count += 1
        command = Command(
            (*more.pop("launch", (sys.executable,)), str(self.folder / script), "{batch_size}"),
            environment=more.pop("environment", {}),
        )
        device = more.pop("device", Device("imaginary", "t4 (imaginary)", find_gpu("t4")))
        trial = Trial(command, {"batch_size": value}, device, TrialKind.TRACE, **more)
        place = self.folder / "record" / f"trial-{self.count}"
        result = run_trial(
            trial, place, self.folder / "record", watch, imports=self.imports if imports else None
        )
        lines = (place / "stdout.txt").read_text().splitlines()
        return result, json.loads(lines[-1]) if lines else None

    def trace(self, result):
        return (self.folder / "record" / result.folder / result.reports[0].trace_file).read_bytes()


@pytest.fixture
def commands(tmp_path, monkeypatch):
    library = tmp_path / "site-packages" / "heavy_library.py"
    library.parent.mkdir()
    library.write_text(LIBRARY)
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(library.parent))
    monkeypatch.chdir(tmp_path)
    shared = SharedImports(tmp_path / "record" / "imports")
    yield Commands(tmp_path, shared)
    shared.close()
    assert not (tmp_path / "record" / "imports").exists()


def test_trials_import_once_and_have_all_else_for_themselves(commands, tmp_path, monkeypatch):
    before = set(os.listdir(tmp_path))
    first, second = commands.run(8)[1], commands.run(11)[1]
    assert first["imported"] == second["imported"] != first["pid"] != second["pid"]
    assert (
        (first["argv"], second["argv"])
        == (["8"], ["11"])
        == (first["original"], second["original"])
    )
    assert (first["config"], second["config"]) == ({"batch_size": 8}, {"batch_size": 11})
    assert all(
        seen["session"] == seen["pid"] and seen["made"] and seen["text"] == "written"
        for seen in (first, second)
    )
    assert set(os.listdir(tmp_path)) == before | {"record"}
    monkeypatch.setenv("MINE", "1")  # another environment: other imports
    third = commands.run(8)[1]
    assert third["mine"] == "1" and third["imported"] != first["imported"]
    alone = commands.run(8, imports=False)[1]
    assert alone["imported"] == alone["pid"]
    assert {name: alone[name] for name in ("argv", "original", "made", "folder", "text")} == {
        name: third[name] for name in ("argv", "original", "made", "folder", "text")
    }


def test_forked_trials_write_the_traces_of_those_that_are_not_and_share_their_imports(
    commands, tmp_path
):
    (tmp_path / "trains.py").write_text(TRAINING)
    imported, traces = set(), []
    for size, imports, sees in (
        (4, True, True),
        (16, True, True),
        (16, True, False),
        (16, False, True),
        (16, False, False),
    ):
        result = commands.run(size, "trains.py", imports=imports, ends=Ends(see_eval=sees))[0]
        assert result.outcome is Outcome.COMPLETED and ("eval" in result.reports[0].phases) == sees
        imported |= {commands.imports._process.pid}
        traces.append(commands.trace(result))
    assert len(imported) == 1 and traces[1:3] == traces[3:] and len(set(traces)) == 3
    with_workers = commands.run(16, "trains.py", environment={"WORKERS": "1"})[0]
    assert with_workers.outcome is Outcome.COMPLETED
    assert commands.trace(with_workers) == traces[1]


def test_trials_on_different_cards_share_their_imports_and_each_sees_its_own(commands, tmp_path):
    (tmp_path / "asks.py").write_text(ASKS)
    imported, seen = set(), {"t4": [], "h100": []}
    for name, imports in (
        ("t4", True),
        ("h100", True),
        ("h100", False),
    ):
        device = Device("imaginary", f"{name} (imaginary)", find_gpu(name))
        result, answers = commands.run(1, "asks.py", imports=imports, device=device)
        assert result.outcome is Outcome.COMPLETED and commands.imports.forked
        imported |= {commands.imports._process.pid}
        seen[name].append((answers, result.reports[0].context_bytes, commands.trace(result)))
    assert len(imported) == 1
    for ways in seen.values():
        assert all(way == ways[-1] for way in ways)
    assert all(a != b for a, b in zip(seen["t4"][0], seen["h100"][0], strict=True))


LAUNCHED = (
    """
import json, os, sys
from accelerate import Accelerator
said = {"argv": sys.argv, "mixed": Accelerator().mixed_precision}
print(json.dumps({**said, "parent": os.getppid(), "folder": os.getcwd()}))
"""
    + TRAINING
)


def test_the_rank_of_a_launcher_is_forked_without_it_from_the_second_trial_on(commands, tmp_path):
    (tmp_path / "launched.py").write_text(LAUNCHED)
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--mixed_precision", "fp16")
    seen, traces = [], []
    for size, imports in (
        (8, True),
        (16, True),
        (16, False),
    ):
        result, _ = commands.run(size, "launched.py", imports=imports, launch=launch)
        assert result.outcome is Outcome.COMPLETED, result.failure
        output = (tmp_path / "record" / result.folder / "stdout.txt").read_text()
        seen.append((json.loads(output.splitlines()[0]), imports and commands.imports.forked))
        traces.append(commands.trace(result))
    assert [forked for _, forked in seen] == [False, True, False]
    other = (*launch, "--num_cpu_threads_per_process", "1", str(tmp_path / "launched.py"), "16")
    assert commands.imports._launched.rank(other, {}) == (other, {}), (
        "other words before the script"
    )
    assert traces[1] == traces[2] != traces[0]
    assert seen[1][0]["argv"] == seen[2][0]["argv"] and {one["mixed"] for one, _ in seen} == {
        "fp16"
    }
    assert seen[0][0]["argv"][1:] == ["8"]


def test_what_starts_several_ranks_or_is_no_launcher_is_not_started_without_it(commands, tmp_path):
    (tmp_path / "rank.py").write_text(
        "import sys; sys.argv[1]"
    )  # no output: lines of two ranks would be mixed
    (tmp_path / "starts.py").write_text(
        "import subprocess, sys; subprocess.run([sys.executable, 'rank.py', sys.argv[1]])"
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
    for launch, script in (
        ((*torchrun, "2"), "rank.py"),
        ((*torchrun, "1"), "rank.py"),
        ((sys.executable,), "starts.py"),
    ):
        result, _ = commands.run(1, script, launch=launch)
        assert (result.outcome, result.exit_code) == (Outcome.NO_STEP, 0), result.failure
        assert commands.imports._launched is None


def test_a_forked_trial_ends_with_the_exit_code_or_signal_of_its_own(commands, tmp_path):
    forked, alone = commands.run(10)[0], commands.run(10, imports=False)[0]
    assert forked.exit_code == alone.exit_code == 3 and forked.outcome is alone.outcome
    (tmp_path / "killed.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    forked, alone = commands.run(1, "killed.py")[0], commands.run(1, "killed.py", imports=False)[0]
    assert forked.outcome is alone.outcome is Outcome.KILLED


def test_trials_on_a_real_device_start_as_ever(commands):
    seen = commands.run(8, device=Device("cpu", "cpu"))[1]
    assert seen["imported"] == seen["pid"]


STARTS_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""
ASKS_THE_CARD = "\nimport torch\nNAME = torch.cuda.get_device_name()"


@pytest.mark.parametrize("text", [STARTS_A_THREAD, ASKS_THE_CARD])
def test_a_library_that_starts_a_thread_or_asks_for_the_card_is_imported_by_each_trial(
    commands, tmp_path, text
):
    (tmp_path / "site-packages" / "heavy_library.py").write_text(LIBRARY + text)
    seen = commands.run(8)[1]
    assert seen["imported"] == seen["pid"] and not commands.imports.forked


def test_what_a_forked_trial_leaves_behind_is_ended(commands, tmp_path):
    (tmp_path / "leaves.py").write_text(
        "import os, time, json\npid = os.fork()\nif not pid:\n    os.setpgid(0, 0)\n    "
        "time.sleep(60)\nprint(json.dumps(pid))"
    )
    pid = commands.run(1, "leaves.py")[1]
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_where_the_process_that_imported_is_killed_its_trial_ends_and_the_next_starts_as_ever(
    commands, tmp_path
):
    (tmp_path / "waits.py").write_text(
        "import heavy_library, time\ntime.sleep(0.0 if heavy_library.PID == 0 else 600)\n"
    )
    killed = []

    def kill(_):
        process = commands.imports._process
        if process is not None and not killed:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    result = commands.run(1, "waits.py", watch=kill)[0]
    assert killed and result.outcome is Outcome.KILLED
    assert commands.run(8)[1]["argv"] == ["8"]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["python", "train.py", "--lr", "1"], 2),
        (["python3", "-u", "-X", "dev", "train.py", "a"], 5),
        (["python", "-m", "pack.train", "a"], 3),
        (["python", "-c", "print()", "a"], None),
        (["python", "-"], None),
        (["bash", "train.sh"], None),
        (["no-such-program"], None),
        (["python", "-I", "train.py"], None),
        (["python", "-uE", "train.py"], None),
    ],
)
def test_only_a_python_script_can_be_forked(words, count):
    assert words_to_script(words) == count


@pytest.mark.parametrize(
    ("first", "count"),
    [
        ("#!/usr/bin/env python3", 1),
        ("#!/bin/sh", None),
        ("#!/usr/bin/env -S uv run python", None),
    ],
)
def test_a_program_that_is_a_python_script_can_be_forked(tmp_path, first, count):
    (tmp_path / "program").write_text(f"{first}\nimport sys\n")
    (tmp_path / "program").chmod(0o755)
    assert words_to_script([str(tmp_path / "program"), "train"]) == count
