"""Runs of `brimful run` that are killed at random moments and given again until they end:
`python -m bench.run_kills`.

Killed is brimful, a process of its command, all of them at once (as when a machine goes down), or
brimful is told to end (SIGTERM); after a drawn step of the training, or a drawn time after the
start. Then the same command is given again, at once or after all of its processes are gone. What is
checked of every training: each life goes on from the newest checkpoint, no checkpoint is written
twice, no two lives train at a time, the last state is that of a training that was left alone, and
no process stays. Half of the kills hit a script without torch, whose start takes a tenth of the
time. A control gives `--fresh`: the checks must see that.
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
from typing import Annotated, Any

from bench import harness
from bench.run_kills_train import CHECKPOINTS, LOG, STEPS, newest

TRAIN = str(harness.ROOT / "bench" / "run_kills_train.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Of each kind: the command, the share of the kills, and how long a start takes at most (assumed).
KINDS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "without torch": ((sys.executable, TRAIN), 0.5, 1.5),
    "torch": ((sys.executable, TRAIN, "--torch"), 0.25, 6.0),
    "torch on two ranks": ((sys.executable, *TORCHRUN, TRAIN, "--torch"), 0.25, 12.0),
}
KILLED = ("brimful", "a process", "all", "told to end")
KILLS_OF_ONE = 6  # trainings with more would seldom come further than the one before
LIFE_S, GONE_S = 180.0, 20.0  # assumed: what takes longer hangs, or stays
_MARK = "BENCH_RUN_KILLS"


class Training:
    """One training in a folder of its own, over all of its lives."""

    def __init__(self, folder: Path, kind: str):
        folder.mkdir(parents=True)
        self.folder, self.kind, self.command = folder, kind, KINDS[kind][0]
        self.wrong: list[str] = []

    def start(self, *flags: str) -> "subprocess.Popen[bytes]":
        words = ("run", "--device", "cpu", "--plan", "none", "--resume-with", "--resume last")
        with open(self.folder / "output.txt", "ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "brimful", *words, *flags, "--", *self.command, "{resume}"],
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

    def require_all_gone(self) -> None:
        if not wait(lambda: not self.processes(), GONE_S):
            self.wrong.append(f"processes stay: {', '.join(map(words_of, self.processes()))}")
            self.kill_all()

    def end(self, brimful: "subprocess.Popen[bytes]") -> int:
        """Its exit code, once it has ended by itself."""
        try:
            return brimful.wait(LIFE_S)
        except subprocess.TimeoutExpired:
            self.wrong.append("brimful hangs")
            self.kill_all()
            return brimful.wait()

    def kill_all(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def words_of(pid: int) -> str:
    """The command line of a process, "" where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def wait(holds: Callable[[], bool], limit_s: float) -> bool:
    ends = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.002)
    return True


def kill(training: Training, brimful: Any, draw: random.Random) -> dict[str, Any] | None:
    """Waits for a drawn moment and kills; None where the training had ended before."""
    starts_s, by_time = KINDS[training.kind][2], draw.random() < 0.3
    target = 0 if by_time else training.steps() + draw.randrange(1, STEPS // (KILLS_OF_ONE + 2))
    wait(lambda: brimful.poll() is not None or training.steps() >= target, LIFE_S)
    time.sleep(draw.random() * (starts_s if by_time else 0.01))
    wait(lambda: brimful.poll() is not None or bool(training.processes(brimful.pid)), LIFE_S)
    whom, theirs = draw.choice(KILLED), training.processes(brimful.pid)
    if brimful.poll() is not None or not theirs:
        return None
    targets = {"a process": [draw.choice(theirs)], "all": [brimful.pid, *theirs]}
    number = signal.SIGTERM if whom == "told to end" else signal.SIGKILL
    step = training.steps()
    for pid in targets.get(whom, [brimful.pid]):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    again = draw.choice(("at once", "later"))
    return {"whom": whom, "by": "time" if by_time else "step", "step": step, "again": again}


def train(folder: Path, kind: str, draw: random.Random, kills: int, *flags: str) -> dict[str, Any]:
    """To its end, killed up to so many times on the way. `flags`: of brimful, after a kill."""
    training, done, refused = Training(folder, kind), [], 0
    while True:
        brimful = training.start(*(flags if done else ()))
        killed = kill(training, brimful, draw) if len(done) < kills else None
        code = training.end(brimful)
        if killed is not None:
            done.append(killed)
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
    runs = [row for row in rows if row["role"] == "killed"]
    for row in runs:
        if row["state"] != alone[row["kind"]]:
            row["wrong"] = [*row["wrong"], "its last state is not that of one left alone"]
    kills = [kill for row in runs for kill in row["kills"]]
    controls = [row for row in rows if row["role"] == "control"]
    return {
        "trainings": len(runs),
        "kills": len(kills),
        "kills_by_script": {
            kind: sum(len(row["kills"]) for row in runs if row["kind"] == kind) for kind in KINDS
        },
        **{
            f"kills_by_{key}": dict(Counter(k[key] for k in kills))
            for key in ("whom", "by", "again")
        },
        "kills_before_the_first_step": sum(kill["step"] == 0 for kill in kills),
        "refused_while_a_process_lived": sum(row["refused"] for row in runs),
        "wrong": [sentence for row in runs for sentence in row["wrong"]],
        "controls_seen": f"{sum(bool(row['wrong']) for row in controls)} of {len(controls)}",
    }


def all_rows(kills: int, kinds: Sequence[str], seed: int) -> list[dict[str, Any]]:
    rows = []
    shares = {kind: KINDS[kind][1] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        for kind in kinds:
            draw, left = (
                random.Random(f"{seed}/{kind}"),
                round(kills * shares[kind] / sum(shares.values())),
            )
            rows.append({"role": "alone", **train(Path(name, kind, "alone"), kind, draw, 0)})
            control = train(Path(name, kind, "control"), kind, draw, 3, "--fresh")
            rows.append({"role": "control", **control})
            number = 0
            while left > 0:
                number += 1
                folder = Path(name, kind, str(number))
                rows.append(
                    {"role": "killed", **train(folder, kind, draw, min(left, KILLS_OF_ONE))}
                )
                left -= len(rows[-1]["kills"])
                harness.say(kind, left, "left", *rows[-1]["wrong"])
    return rows


def main(
    *,
    kills: int = 100,
    seed: Annotated[int | None, "of the moments (else drawn, and printed)"] = None,
    out: harness.Out = harness.RESULTS,
) -> int:
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    print(f"seed {seed}", flush=True)
    rows = all_rows(kills, list(KINDS), seed)
    figures = summary(rows)
    print(
        f"{figures['kills']} kills in {figures['trainings']} trainings, "
        f"{figures['kills_by_script']}: "
        f"{len(figures['wrong'])} things wrong; controls seen: {figures['controls_seen']}"
    )
    for sentence in figures["wrong"]:
        print(f"  {sentence}")
    what = "runs of brimful run killed at random moments, and the same command again to its end"
    result = {**harness.heading(what), "settings": {"seed": seed, "steps": STEPS}, **figures}
    harness.keep("run_kills", result, out, rows=rows)
    seen, controls = figures["controls_seen"].split(" of ")
    return 1 if figures["wrong"] or seen != controls else 0


if __name__ == "__main__":
    sys.exit(harness.run(main))
