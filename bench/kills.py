"""Trainings that are killed at random moments and started again until they end:
`python -m bench.kills`.

Two things are killed. The engine: all of its processes, or a loader's worker, get SIGKILL after a
number of steps, after a time, or while a checkpoint is being written; or all are told to end
(SIGTERM, as by scancel). And `brimful run`: brimful, a process of its command, a worker, or all of
them at once (as when a machine goes down); or brimful, or all of them, are told to end. Half of
these kills hit a script without torch, whose start takes a tenth of the time. What was told to end
must end with 143, the engine after a checkpoint of its last step. Then the same command is given
again, at once or after all of its processes are gone. What is checked of every training: each life
goes on from the newest checkpoint, no checkpoint is written twice, no two lives train at a time,
the last state is, bit for bit, that of a training that was left alone, and no process stays.
Controls begin anew (`--fresh`) or forget the random state: the checks must see that.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from bench import harness
from bench.kills_train import CHECKPOINTS, LOG, STEPS, newest

TRAIN = (sys.executable, str(harness.ROOT / "bench" / "kills_train.py"))
RUN = (sys.executable, "-m", "brimful", "run", "--device", "cpu", "--plan", "none")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MOMENTS = ("step", "step", "time")
WORKER, TOLD, ALL_TOLD = "a worker", "told to end", "all told to end"
KILLED = ("brimful", "a process", "all", TOLD, ALL_TOLD)
KILLS_OF_ONE = 6  # trainings with more would seldom come further than the one before
LIFE_S, GONE_S = 180.0, 20.0  # assumed: what takes longer hangs, or stays
_MARK = "BENCH_KILLS"


class Kind(NamedTuple):
    """What is killed. `starts_s`: how long a start takes at most (assumed)."""

    command: tuple[str, ...]
    share: float  # of all kills
    starts_s: float
    moments: tuple[str, ...] = MOMENTS
    killed: tuple[str, ...] = KILLED
    control: str = "--fresh"  # what loses something

    @property
    def by_brimful(self) -> bool:
        return "brimful" in self.killed

    def words(self, flags: Sequence[str]) -> list[str]:
        if not self.by_brimful:
            return [*self.command, *flags]
        return [*RUN, "--resume-with", "--resume last", *flags, "--", *self.command, "{resume}"]


KINDS = {
    "engine": Kind(
        (*TRAIN, "--engine"),
        0.5,
        5.0,
        ("step", "time", "writing"),
        ("all", WORKER, ALL_TOLD),
        "--forget",
    ),
    "without torch": Kind(TRAIN, 0.25, 1.5),
    "torch": Kind((*TRAIN, "--torch"), 0.125, 6.0, killed=(*KILLED, WORKER)),
    "torch on two ranks": Kind((sys.executable, *TORCHRUN, TRAIN[1], "--torch"), 0.125, 12.0),
}


class Training:
    """One training in a folder of its own, over all of its lives."""

    def __init__(self, folder: Path, kind: str):
        folder.mkdir(parents=True)
        self.folder, self.kind = folder, KINDS[kind]
        self.wrong: list[str] = []

    def start(self, *flags: str) -> "subprocess.Popen[bytes]":
        with open(self.folder / "output.txt", "ab") as output:
            return subprocess.Popen(
                self.kind.words(flags),
                cwd=self.folder,
                env=harness.environment(self.folder / "records", **{_MARK: str(self.folder)}),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> list[tuple[str, int, int]]:
        """(event, process, step) of every life so far."""
        path = self.folder / LOG
        lines = path.read_text().splitlines() if path.exists() else []
        return [(event, int(pid), int(step)) for event, pid, step in map(str.split, lines)]

    def steps(self) -> int:
        return max((step for event, _, step in self.log() if event == "step"), default=0)

    def is_writing(self) -> bool:
        return any((self.folder / CHECKPOINTS).glob(".writing-*"))

    def processes(self, but: int = 0) -> list[int]:
        """Of the command and of brimful, whoever started them."""
        mark, marked = f"{_MARK}={self.folder}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                is_marked = mark in path.read_bytes().split(b"\0")
            except OSError:
                continue
            if is_marked and int(path.parent.name) != but:
                marked.append(int(path.parent.name))
        return marked

    def workers(self) -> list[int]:
        """Of loaders: forked, so that they have the words of their parents."""
        words = {}
        for pid in self.processes():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                words[pid] = int(stat[1]), Path(f"/proc/{pid}/cmdline").read_bytes()
        return [pid for pid, (ppid, line) in words.items() if words.get(ppid, (0, b""))[1] == line]

    def require_all_gone(self) -> None:
        if not wait(lambda: not self.processes(), GONE_S):
            self.wrong.append(f"processes stay: {self.processes()}")
            self.kill_all()

    def end(self, started: "subprocess.Popen[bytes]") -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return started.wait(LIFE_S)
        except subprocess.TimeoutExpired:
            self.wrong.append("it hangs")
            self.kill_all()
            return started.wait()

    def kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait(holds: Callable[[], bool], limit_s: float) -> bool:
    ends = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.001)
    return True


def kill(
    training: Training, started: Any, draw: random.Random, moments: Sequence[str]
) -> dict[str, Any] | None:
    """Waits for a drawn moment and kills; None where the training had ended before."""
    kind, by = training.kind, draw.choice(moments)
    target = training.steps() + draw.randrange(1, STEPS // (KILLS_OF_ONE + 2))

    def until(holds: Callable[[], Any]) -> None:
        wait(lambda: started.poll() is not None or bool(holds()), LIFE_S)

    if by != "time":
        until(lambda: training.steps() >= target)
    if by == "writing":
        until(training.is_writing)
    if by == "checkpoint":
        until(lambda: any((training.folder / CHECKPOINTS).glob("step-*")))
    time.sleep(draw.random() * (kind.starts_s if by == "time" else 0.006))
    if kind.by_brimful:
        until(lambda: training.processes(started.pid))
    whom = draw.choice(kind.killed)
    if whom == WORKER:
        until(training.workers)
    theirs, workers = training.processes(started.pid), training.workers()
    if started.poll() is not None or (kind.by_brimful and not theirs):
        return None
    everybody = [*workers, *(pid for pid in (*theirs, started.pid) if pid not in workers)]
    targets = {
        "a process": theirs and [draw.choice(theirs)],
        "all": [started.pid, *theirs],
        ALL_TOLD: everybody,
        WORKER: workers[:1],
    }
    number = signal.SIGTERM if whom in (TOLD, ALL_TOLD) else signal.SIGKILL
    for pid in targets.get(whom, [started.pid]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    killed = {"whom": whom, "by": by, "step": training.steps(), "writing": training.is_writing()}
    return {**killed, "again": draw.choice(("at once", "later"))}


def train(folder: Path, kind: str, draw: random.Random, kills: int, *flags: str) -> dict[str, Any]:
    """To its end, killed up to so many times on the way. `flags`: of a control, after a kill; a
    control is killed after a checkpoint, since it can lose nothing before.
    """
    training, done, refused = Training(folder, kind), [], 0
    moments = ("checkpoint",) if flags else training.kind.moments
    while True:
        started = training.start(*(flags if done else ()))
        killed = kill(training, started, draw, moments) if len(done) < kills else None
        code = training.end(started)
        if killed is not None:
            done.append(killed)
        if killed is not None and killed["whom"] in (TOLD, ALL_TOLD):
            training.wrong += wrong_after_told(training, killed, started.pid, code)
        if killed is not None and code != 0:  # 0: what was killed was no part of the training
            if killed["again"] == "later":
                training.require_all_gone()
            continue
        refused += code == 2
        if code == 2 and refused <= 10:  # a process of the life before is alive
            continue
        if code == 0:
            break
        last = (training.folder / "output.txt").read_text(errors="replace")[-500:]
        training.wrong.append(f"ended with {code}: {last}")
        break
    training.require_all_gone()
    training.wrong += wrong_in(training.log())
    state = newest(training.folder / CHECKPOINTS)
    found = {"kills": done, "refused": refused, "state": state, "wrong": training.wrong}
    return {"kind": kind, **found}


def wrong_after_told(training: Training, killed: dict[str, Any], pid: int, code: int) -> list[str]:
    """Of the life of the process `pid`. 0: it had come to its end; by the signal itself: it had not
    begun to train, or brimful had done all, since what it ran was told just before it."""
    begun = any(event == "step" for event, _, _ in training.log()) and killed["by"] != "time"
    is_last = training.kind.by_brimful and killed["whom"] == ALL_TOLD
    if code not in ((0, 143) if begun and not is_last else (0, 143, -signal.SIGTERM)):
        return [f"told to end at step {killed['step']}, it ended with {code}"]
    last = newest(training.folder / CHECKPOINTS)[0]
    steps = [step for event, of, step in training.log() if event == "step" and of == pid]
    if code == 143 and not training.kind.by_brimful and last < max(steps, default=0):
        return [f"told to end in step {max(steps)}, it ended with a checkpoint of step {last}"]
    return []


def wrong_in(log: Sequence[tuple[str, int, int]]) -> list[str]:
    """What was lost, by the log of all lives of a training."""
    wrong, kept, alive = [], 0, None
    for event, pid, step in log:
        if event == "began":
            if step < kept:
                wrong.append(f"a life began at step {step}, after a checkpoint of step {kept}")
            alive = pid
        elif pid != alive:
            wrong.append(f"{event} {step} of a process after which another one had begun")
        elif event == "overwrote" and step <= kept:
            wrong.append(f"the checkpoint of step {step} was written again, after {kept}")
        kept = max(kept, step) if event == "checkpoint" else kept
    return wrong


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`rows`: of the trainings, and of each kind one that was left alone and a control."""
    alone = {row["kind"]: row["state"] for row in rows if row["role"] == "alone"}
    for row in rows:
        if row["state"] != alone[row["kind"]]:
            row["wrong"] = [*row["wrong"], "its last state is not that of one left alone"]
    runs = [row for row in rows if row["role"] == "killed"]
    kills = [kill for row in runs for kill in row["kills"]]
    controls = [row for row in rows if row["role"] == "control"]
    return {
        "trainings": dict(Counter(row["kind"] for row in runs)),
        "kills": {
            kind: sum(len(row["kills"]) for row in runs if row["kind"] == kind) for kind in alone
        },
        **{
            f"kills_by_{key}": dict(Counter(k[key] for k in kills))
            for key in ("whom", "by", "again")
        },
        "kills_before_the_first_step": sum(kill["step"] == 0 for kill in kills),
        "kills_while_the_engine_wrote_a_checkpoint": sum(kill["writing"] for kill in kills),
        "refused_while_a_process_lived": sum(row["refused"] for row in runs),
        "wrong": [sentence for row in runs for sentence in row["wrong"]],
        "controls_seen": sum(bool(row["wrong"]) for row in controls),
    }


def all_rows(kills: int, kinds: Sequence[str], seed: int) -> list[dict[str, Any]]:
    rows = []
    whole = sum(KINDS[kind].share for kind in kinds)
    with tempfile.TemporaryDirectory() as name:
        for kind in kinds:
            draw, left = random.Random(f"{seed}/{kind}"), round(kills * KINDS[kind].share / whole)
            rows.append({"role": "alone", **train(Path(name, kind, "alone"), kind, draw, 0)})
            control = train(Path(name, kind, "control"), kind, draw, 3, KINDS[kind].control)
            rows.append({"role": "control", **control})
            while left > 0:
                folder = Path(name, kind, str(len(rows)))
                rows.append(
                    {"role": "killed", **train(folder, kind, draw, min(left, KILLS_OF_ONE))}
                )
                left -= len(rows[-1]["kills"])
                harness.say(kind, left, "left", *rows[-1]["wrong"])
    return rows


def main(
    *,
    kills: int = 200,
    only: Annotated[list[str] | None, f"of: {', '.join(KINDS)}"] = None,
    seed: Annotated[int | None, "of the moments (else drawn, and printed)"] = None,
    out: harness.Out = harness.RESULTS,
) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    print(f"seed {seed}", flush=True)
    kinds = list(harness.choose(KINDS, only))
    rows = all_rows(kills, kinds, seed)
    figures = summary(rows)
    print(
        f"kills {figures['kills']} in trainings {figures['trainings']}: {len(figures['wrong'])} "
        f"things wrong; controls seen: {figures['controls_seen']} of {len(kinds)}"
    )
    for sentence in figures["wrong"]:
        print(f"  {sentence}")
    what = "trainings killed at random moments, and the same command again to their ends"
    result = {**harness.heading(what), "settings": {"seed": seed, "steps": STEPS}, **figures}
    harness.keep("kills", result, out, rows=rows)
    return int(bool(figures["wrong"]) or figures["controls_seen"] < len(kinds))


if __name__ == "__main__":
    sys.exit(harness.run(main))
