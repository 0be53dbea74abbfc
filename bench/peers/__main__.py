"""What finds batch sizes, side by side on imaginary cards: `python -m bench.peers --python PATH`.

PATH is the Python of an environment made from requirements.txt (`make bench-peers`); composer and
ultralytics have another one. Each job is trained on an imaginary card that raises real
torch.OutOfMemoryErrors, each peer finds a batch size for it there, and `brimful predict` is asked
for one. A cell that is in the result file is not run again, so that a bench that was cut goes on.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.peers.card import calibration
from bench.peers.jobs import JOBS, Job
from bench.peers.table import BRIMFUL, OF_VISION, PEERS, WITH_MAXIMUM, Row, table
from bench.run_scripts import versions
from brimful.measure.gpus import calibrations

PACKAGES = {
    "main": ["accelerate", "lightning", "peft", "toma", "torch-preflight", "transformers"],
    "vision": ["mosaicml", "torchvision", "transformers", "ultralytics"],
}
LIMIT_S = 3000  # of all peers of a job in one environment
# One job is run once more with a maximum, which is no power of two and less than what fits.
MAXIMUM_OF, MAXIMUM = "pairwise", 700


def cells(python: str, job: str, peers: Sequence[str], **flags: Any) -> Iterator[dict[str, Any]]:
    """A row of each peer, as it comes."""
    words = [python, "-m", "bench.peers.cell", job, *peers, *harness.flags(flags)]
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            words,
            cwd=harness.ROOT,
            env=harness.environment(),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        ) as process,
    ):
        missing = list(peers)
        for line in process.stdout or ():
            if line.startswith("{") and '"peer"' in line:
                row = json.loads(line)
                missing.remove(row["peer"])
                yield row
        if process.wait() and missing:  # the process died with it
            said.seek(0)
            last = (said.read().strip().splitlines() or ["no words"])[-1]
            yield {"peer": missing[0], "error": last[:300]}


def brimful(python: str, job: str, most: int | None) -> Iterator[dict[str, Any]]:
    """What `predict` names, and whether a trial traced that size."""
    maximum = {"max_batch_size": most} if most else {}
    known = calibration(JOBS[job].memory)
    words = ["predict", "--gpu", known.name, *harness.flags(maximum)]
    command = [python, "-m", "bench.peers.cell", job, "train", "--batch-size", "{batch_size}"]
    with tempfile.TemporaryDirectory() as folder:
        calibrations.keep(known, Path(folder, "records"))
        report = harness.brimful(words, command, folder, limit_s=LIMIT_S)
        configs = [json.loads(path.read_text()) for path in Path(folder).rglob("trial_config.json")]
    answer = report["answer"]
    sizes = [config["settings"].get("batch_size") for config in configs]
    errors = ["ran out of memory" in note["problem"] for note in answer.get("warnings", ())]
    for peer, field in BRIMFUL.items():
        row: dict[str, Any] = {"peer": peer, "seconds": round(report["seconds"], 1)}
        if "error" in answer:
            yield {**row, "error": answer["error"]["problem"]}
            continue
        named = answer[field]
        yield {
            **row,
            "named": named,
            "ran": named in sizes,
            "trials": report["trials"],
            "sizes": sizes,
            "out_of_memory_errors": sum(errors),  # of trials
            "limited_by": answer["limited_by"],
        }


class Kept:
    """The rows of the result file, by job, peer and maximum."""

    def __init__(self, out: Path, packages: dict[str, Any]) -> None:
        self.out, self.packages = out, packages
        before = sorted(out.glob("peers-*.json"))
        rows = json.loads(before[-1].read_text())["rows"] if before else []
        self.rows = {(row["job"], row["peer"], row.get("most")): row for row in rows}

    def add(self, job: str, row: Row, most: int | None = None) -> None:
        row = {"job": job, **row, **({"most": most} if most else {})}
        self.rows[job, row["peer"], most] = row
        harness.say(json.dumps(row))
        result = harness.heading("batch sizes that peers find on imaginary cards", "brimful")
        result |= {"packages": self.packages, "rows": list(self.rows.values())}
        harness.keep("peers", result, self.out)

    def lacks(self, job: str, peers: Sequence[str], most: int | None = None) -> list[str]:
        return [peer for peer in peers if (job, peer, most) not in self.rows]


def can(peer: str, job: Job) -> bool:
    """Whether the job can be put to the peer."""
    return peer in OF_VISION if job.vision else peer != "ultralytics"


def environment_of(peer: str, job: str) -> str:
    """Where a peer runs on a job."""
    return "vision" if JOBS[job].vision and peer not in BRIMFUL else PEERS[peer]


def fill(
    kept: Kept, job: str, pythons: dict[str, str], peers: Sequence[str], most: int | None = None
) -> None:
    """The cells of a job that are missing."""
    for name, python in pythons.items():
        theirs = [peer for peer in peers if environment_of(peer, job) == name]
        lacking = kept.lacks(job, theirs, most)
        true = kept.rows.get((job, "true", None), {}).get("largest", 1)
        flags = {"true": true, **({"most": most} if most else {})}
        for row in cells(python, job, lacking, **flags) if lacking else ():
            kept.add(job, row, most)
    if kept.lacks(job, [peer for peer in peers if peer in BRIMFUL], most):
        for row in brimful(pythons[environment_of("true", job)], job, most):
            kept.add(job, row, most)


def judge(kept: Kept, job: str, python: str) -> None:
    """Whether the plain loop trains at each size that was named for a job."""
    rows = [row for row in kept.rows.values() if row["job"] == job and row.get("named")]
    rows = [row for row in rows if "fits" not in row]
    sizes = sorted({row["named"] for row in rows})
    words = [python, "-m", "bench.peers.cell", job, "fits", "--sizes", *map(str, sizes)]
    fits = json.loads(harness.output_of(words).splitlines()[-1]) if sizes else {}
    for row in rows:
        kept.add(job, {**row, "fits": fits[str(row["named"])]}, row.get("most"))


def main(
    *,
    python: Annotated[str, "of the environment of most peers"],
    vision: Annotated[str | None, "of the one that has composer and ultralytics"] = None,
    only: Annotated[list[str] | None, "names of jobs"] = None,
    peers: Annotated[list[str] | None, "names of peers"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    pythons = {"main": python, **({"vision": vision} if vision else {})}
    kept = Kept(out, {name: versions(path, PACKAGES[name]) for name, path in pythons.items()})
    chosen = harness.choose(PEERS, peers)
    for job, of in harness.choose(JOBS, only).items():
        if of.vision and vision is None:
            harness.say(job, "left out without --vision")
            continue
        if kept.lacks(job, ["true"]):  # predictors are asked about that size
            fill(kept, job, pythons, ["true"])
        fill(kept, job, pythons, [peer for peer in chosen if can(peer, of)])
        if job == MAXIMUM_OF:
            asked = [peer for peer in chosen if peer in WITH_MAXIMUM]
            fill(kept, job, pythons, asked, MAXIMUM)
        judge(kept, job, pythons[environment_of("true", job)])
    print(
        "The largest batch size that a plain loop trains at on an imaginary card of 1.5 GiB, and "
        "what each tool names (share of it):",
        table(list(kept.rows.values())),
        sep="\n\n",
    )


if __name__ == "__main__":
    harness.run(main)
