"""The table of endings in docs/reference/run.md: who is told, when, how, and what follows."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).with_name("endings_train.py")
RESUME = ("--resume-with", "--resume", "--device", "cpu")
LIMIT_S = 150  # of what takes seconds where nothing else runs
KILLED = 5  # by `run`; of a process that was killed by itself, -9


class Training:
    """One training in a folder, started again and again; `under` says whether by `brimful run`."""

    def __init__(self, folder: Path, kind: str, under: bool):
        self.folder, self.kind, self.under = folder, kind, under
        script = [sys.executable, str(SCRIPT), kind]
        self.argv = script if not under else [sys.executable, "-m", "brimful", "run", "--", *script]
        if under and kind != "engine":  # which finds its checkpoint by itself
            self.argv[4:4] = RESUME
            self.argv.append("{resume}")

    def start(self) -> None:
        self.begins_at = len(self.log())
        with open(self.folder / "output", "ab") as output:
            self.process = subprocess.Popen(
                self.argv,
                cwd=self.folder,
                env={**os.environ, "BRIMFUL_HOME": str(self.folder / "records")},
                stdout=output,
                stderr=output,
                start_new_session=True,
                # a job in the background would ignore it
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def wait_for(self, moment: str) -> None:
        """A line of its log that begins so, since it was started."""
        ends = time.monotonic() + LIMIT_S
        while not any(line.startswith(moment) for line in self.log()[self.begins_at :]):
            assert self.process.poll() is None and time.monotonic() < ends, self.output()[-2000:]
            time.sleep(0.01)

    def told(self, who: str) -> list[int]:
        """The processes that `who` means: "brimful", "main", "worker" or "all"."""
        top = psutil.Process(self.process.pid)
        everybody = [top, *top.children(recursive=True)]
        ours = [p for p in everybody if str(SCRIPT) in p.cmdline() and "brimful" not in p.cmdline()]
        workers = [p for p in ours if p.ppid() in {q.pid for q in ours}]
        main = [p for p in ours if p not in workers]
        chosen = {"brimful": [top], "main": main[:1], "worker": workers[:1], "all": everybody[::-1]}
        return [process.pid for process in chosen[who]]

    def signal(self, who: str, number: int, times: int) -> None:
        pids = self.told(who)
        assert pids, who
        for _ in range(times):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(0.04)

    def end(self) -> int:
        try:
            return self.process.wait(LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def numbers(self, word: str) -> list[int]:
        found = (re.fullmatch(rf"{word} (\d+)", line) for line in self.log())
        return [int(match[1]) for match in found if match]


TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
#: (training, by `brimful run`, who, when, signal, how often, exit code)
ROWS = [
    ("engine", False, "all", "train", TERM, 1, 143),
    ("engine", False, "all", "writing", TERM, 2, 143),
    ("plain", True, "main", "train", TERM, 1, 143),
]
SLOW = [
    ("engine", False, "main", "start", TERM, 1, -TERM),
    ("engine", False, "all", "eval", TERM, 1, 143),
    ("engine", False, "all", "removing", TERM, 1, 143),
    ("engine", False, "worker", "train", TERM, 1, 143),
    ("engine", False, "main", "train", HUP, 1, 143),
    ("engine", False, "all", "train", INT, 1, 130),
    ("engine", False, "main", "writing", INT, 2, 130),
    ("engine", False, "worker", "train", KILL, 1, 5),
    ("engine", False, "worker", "writing", KILL, 1, 5),
    ("engine", False, "main", "train", KILL, 1, -KILL),
    ("engine", True, "brimful", "train", TERM, 1, 143),
    ("engine", True, "main", "train", TERM, 1, 143),
    ("engine", True, "all", "writing", TERM, 2, 143),
    ("engine", True, "brimful", "removing", INT, 1, 130),
    ("engine", True, "worker", "train", KILL, 1, KILLED),
    ("plain", True, "all", "train", TERM, 1, 143),
    ("plain", True, "brimful", "writing", INT, 1, 130),
    ("plain", True, "worker", "train", TERM, 1, 143),
    ("plain", True, "worker", "saved 3", KILL, 1, KILLED),
    ("plain", True, "main", "saved 3", KILL, 1, KILLED),
    ("plain", True, "brimful", "saved 3", KILL, 1, -KILL),
    ("plain", True, "brimful", "train", HUP, 1, 143),
    ("trainer", True, "main", "saved 3", TERM, 1, 143),
    ("trainer", True, "all", "saved 3", TERM, 1, 143),
    ("trainer", True, "main", "saved 3", INT, 1, 130),
    ("trainer", True, "worker", "saved 3", KILL, 1, KILLED),
    ("lightning", True, "main", "train", TERM, 1, 143),
    ("lightning", True, "brimful", "train", TERM, 1, 143),
    ("lightning", True, "all", "train", TERM, 1, 143),
    ("lightning", True, "main", "train", INT, 1, 130),
    ("lightning", True, "worker", "saved 3", KILL, 1, KILLED),
]
#: These save when they are told, whatever the moment.
SAVES = ("engine", "plain", "lightning")


@pytest.mark.parametrize(
    ("kind", "under", "who", "when", "number", "times", "code"),
    [*ROWS, *(pytest.param(*row, marks=[pytest.mark.slow, pytest.mark.heavy]) for row in SLOW)],
)
def test_an_ending_has_one_meaning_and_the_same_command_goes_on(
    tmp_path, kind, under, who, when, number, times, code
):
    training = Training(tmp_path, kind, under)
    training.start()
    training.wait_for(when)
    training.signal(who, number, times)
    assert training.end() == code, training.output()[-3000:]
    says, saved = training.output(), max(training.numbers("saved"), default=0)
    assert "emory ran out" not in says and "the script raised an error" not in says
    # Python itself prints one in a worker whose parent was killed while they spoke.
    orphans = kind == "engine" and who == "main" and number == KILL
    if (kind == "engine" and not orphans) or (kind == "plain" and number != KILL):
        assert "Traceback" not in says
    if code in (130, 143) and kind in SAVES and times == 1:
        assert training.numbers("saved")
    training.start()
    training.wait_for("began")
    assert training.numbers("began")[-1] >= saved
    training.wait_for("train")
    training.signal("brimful", TERM, 1)
    again = training.end()
    assert again in (143, -TERM), training.output()[-3000:]
    # nothing older was written over something newer
    assert training.numbers("saved") == sorted(training.numbers("saved"))
