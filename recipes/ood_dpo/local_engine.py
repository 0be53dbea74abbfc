"""`sweep --engine local`: processes packed onto cards and cores by the memory that brimful predicts
for one of them.

One prediction serves all seeds and output folders: neither changes what a training takes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from brimful.errors import UsageError
from brimful.measure.host import cores
from brimful.units import counted, format_bytes
from recipes.common.running import say
from recipes.ood_dpo.experiments import Experiment, Result, write_json
from recipes.ood_dpo.runs import Bench, sentence

SHARE = 0.9  # of the free memory, as brimful's own budgets
POLL_S = 0.05


@dataclass(frozen=True)
class Needs:
    """What one process takes at its peak. device_bytes: 0 on a CPU."""

    host_bytes: int
    device_bytes: int = 0


def run(left: list[Experiment], bench: Bench, words: Sequence[str]) -> None:
    """All methods of a data set, encoder and seed in one process, one after the other."""
    jobs = deque(jobs_of(left, bench))
    if not jobs:
        return
    threads = bench.settings.sweep.threads
    needs = needed(jobs, bench, words)
    free = places(
        needs, _cards(bench.settings.device), psutil.virtual_memory().available, cores(), threads
    )
    where = f"{format_bytes(needs.host_bytes)} of host memory"
    if needs.device_bytes:
        where += f", {format_bytes(needs.device_bytes)} of the card"
    say(f"One process takes {where}: {counted(len(free), 'process', 'processes')} at once.")
    running: list[Job] = []
    try:
        while jobs or running:
            while jobs and free:
                running.append(Job(jobs.popleft(), free.pop(0), bench, words))
            time.sleep(POLL_S)
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                free.append(job.place)
                if again := job.end():
                    jobs.append(again)
    finally:
        for job in running:
            job.process.kill()
            job.process.wait()


def jobs_of(left: Sequence[Experiment], bench: Bench) -> list[list[Experiment]]:
    """What cannot be loaded fails here, and the features are encoded once, before the processes
    want them.
    """
    jobs: dict[tuple[str, str, int], list[Experiment]] = {}
    for one in left:
        try:
            bench.load(one.dataset, one.encoder)
        except Exception as error:
            bench.settings.results.write(Result(one, engine="local", error=sentence(error)))
        else:
            jobs.setdefault((one.dataset, one.encoder, one.seed), []).append(one)
    return list(jobs.values())


class Job:
    """A worker process, and what it has left when it ends."""

    def __init__(
        self, some: list[Experiment], place: int | None, bench: Bench, words: Sequence[str]
    ) -> None:
        self.some, self.place, self.results = some, place, bench.settings.results
        folder = bench.settings.out / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{some[0].name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command(words, some),
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_the_parent,
                env=_environment(bench.settings.sweep.threads, place),
            )

    def end(self) -> list[Experiment]:
        """What is to be tried in another process: where one was killed, the experiment it was at
        failed, and the rest go on.
        """
        left = self.results.left(self.some)
        left = [one for one in left if self.results.read(one) is None]
        if not left:
            return []
        code = self.process.returncode
        ended = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        lines = self.log.read_text(errors="replace").splitlines()[-3:]
        self.results.write(
            Result(
                left[0],
                engine="local",
                error=f"The process ended {ended}. {' / '.join(lines)}".strip(),
            )
        )
        return left[1:]


def command(words: Sequence[str], some: Sequence[Experiment]) -> list[str]:
    return [
        sys.executable,
        "-m",
        "recipes.ood_dpo",
        "sweep",
        *words,
        "--only",
        *(one.name for one in some),
    ]


def _environment(threads: int, card: int | None) -> dict[str, str]:
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    return variables | ({} if card is None else {"CUDA_VISIBLE_DEVICES": str(card)})


def _end_with_the_parent() -> None:
    """A sweep that is killed leaves no workers behind (Linux: PR_SET_PDEATHSIG is 1)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _cards(device: torch.device) -> list[tuple[int, int]]:
    """(number, free bytes) of each, or none on a CPU."""
    if device.type != "cuda":
        return []
    numbers = range(torch.cuda.device_count()) if device.index is None else [device.index]
    return [(number, torch.cuda.mem_get_info(number)[0]) for number in numbers]


def places(
    needs: Needs, cards: Sequence[tuple[int, int]], host_bytes: int, cores: int, threads: int
) -> list[int | None]:
    """The card of each process that may run at once, in turn; None on a CPU. At least one: alone it
    may still fit.
    """
    at_once = max(1, min(cores // threads, int(SHARE * host_bytes / max(1, needs.host_bytes))))
    if not cards:
        return [None] * at_once
    room = {number: int(SHARE * free / max(1, needs.device_bytes)) for number, free in cards}
    turns = [number for turn in range(max(room.values())) for number in room if turn < room[number]]
    return list(turns[:at_once]) or [cards[0][0]]


def needed(jobs: Sequence[Sequence[Experiment]], bench: Bench, words: Sequence[str]) -> Needs:
    """Of the process that holds most molecules: on a CPU measured by an audit of its first steps,
    on a card predicted. Kept in the folder of the sweep."""
    settings = bench.settings
    largest = max(jobs, key=lambda some: _molecules(some[0], bench))
    file, key = (
        settings.out / "memory.json",
        json.loads(json.dumps(decides_memory(largest[0], bench))),
    )
    try:
        kept = json.loads(file.read_text())
        if kept["of"] == key:
            return Needs(kept["host_bytes"], kept["device_bytes"])
    except (FileNotFoundError, ValueError, KeyError):
        pass
    worker = command(words, largest[:1])
    host = _asked(["audit", "--device", "cpu"], worker, settings.out)["peak"]["host_bytes"]
    device = 0
    if settings.device.type == "cuda":
        total = torch.cuda.mem_get_info(settings.device)[1]
        answer = _asked(
            ["predict", "--no-what-if", "--gpu-memory", f"{total // 2**20}MiB"],
            worker,
            settings.out,
        )
        device = answer["peak"]["device_bytes"]
    needs = Needs(int(host), int(device))
    write_json(
        file, {"of": key, "host_bytes": needs.host_bytes, "device_bytes": needs.device_bytes}
    )
    return needs


def _molecules(one: Experiment, bench: Bench) -> int:
    """Rows of features that its process holds: those of all data sets where it is tested on them."""
    return sum(
        len(array) for _, loaded in bench.tests(one) for array in loaded.features.arrays.values()
    )


def decides_memory(one: Experiment, bench: Bench) -> dict[str, Any]:
    """What else than the code decides what a process takes: its data, and the settings of its
    training.
    """
    settings, head, config = bench.settings, bench.settings.head, bench.settings.config
    pairs = bench.load(one.dataset, one.encoder).member(one.seed).rows.pairs
    return {
        **{
            "device": settings.device.type,
            "threads": settings.sweep.threads,
            "encoder": one.encoder,
            "method": one.method,
        },
        **{
            "pairs": pairs,
            "molecules": _molecules(one, bench),
            "hidden": head.hidden,
            "dropout": head.dropout,
        },
        **{
            "batch": asdict(config.batch),
            "precision": config.precision,
            "optimizer": config.optimizer.name,
        },
        **{"compile": config.compile, "cuda_graphs": config.cuda_graphs},
    }


def _asked(verb: Sequence[str], worker: Sequence[str], out: Path) -> dict:
    line = [
        sys.executable,
        "-m",
        "brimful",
        *verb,
        "--json",
        "--home",
        str(out / "records"),
        "--",
        *worker,
    ]
    done = subprocess.run(line, capture_output=True, text=True)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if "peak" not in answer:
        raise UsageError(
            f"brimful {verb[0]} of one experiment ended with {done.returncode}: "
            f"{(done.stdout + done.stderr).strip()[-500:]}",
            "Processes are packed by the memory that it finds.",
            "Take --engine ensemble, which needs no processes.",
        )
    return answer
