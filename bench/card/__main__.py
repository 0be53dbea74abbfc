"""`make card`: what a card shows in twelve minutes, from a clone, without a network.

    python -m bench.card [--seconds 720] [--only memory edges] [--out FOLDER]
    python -m bench.card --again results.jsonl     predict its trainings anew, on any machine

Each part (parts.py) is a process with a limit of its own and writes each row at once into
results.jsonl; whatever fails does not stop the next. After each part the page (page.md) and one
archive of all files (card.tar.gz) are written anew. Without a card the parts are tried on an
imaginary one and the CPU, with reduced sizes, and the page says so in its first line. `--again`
takes a result of bench/results/measured-*.json as well.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.card import machine
from bench.card.bench import RESULTS, Bench, read
from bench.card.page import page
from bench.card.parts import PARTS
from brimful.measure import accelerators
from brimful.measure.gpus import calibrations, find_gpu, to_card
from brimful.values import Calibration

SECONDS = sum(part.limit_s for part in PARTS.values())
IMAGINED = "h200"
GRACE_S = 5.0  # for processes to end that were told to
DESCRIBED = ("name", "total_bytes", "capability", "multiprocessors")


def described() -> dict[str, Any]:
    """The first row of a result: the machine and its card, or the one that is imagined."""
    row = harness.heading("what a card shows", "transformers", "brimful")
    row = {"part": "machine", "real": True, **row}
    try:
        answer = machine.describe()
        row["versions"] |= answer["versions"] | {
            "driver": next((card.driver for card in accelerators.visible()), None)
        }
        return row | {"card": answer["card"]}
    except LookupError as error:
        card = asdict(to_card(find_gpu(IMAGINED)))
        none = {"real": False, "why": str(error)}
        return row | none | {"card": {name: card[name] for name in DESCRIBED}}


def run_part(bench: Bench) -> None:
    """Keep how the part ended. Past its time all of its processes are told to end."""
    begun = time.monotonic()
    spec = {**asdict(bench), "out": str(bench.out), "scratch": str(bench.scratch)}
    with open(bench.scratch / f"{bench.part}.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.card.part", json.dumps(spec)],
            cwd=harness.ROOT,
            env=harness.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(max(1.0, bench.until - time.time()))
            words = "done" if code == 0 else f"ended with exit code {code}"
        except subprocess.TimeoutExpired:
            words = "cut off at its limit"
        finally:
            end_group(process)
    if "exit code" in words:
        words += f": {' '.join(Path(log.name).read_text().split()[-40:])}"
    bench.keep({"ended": words, "seconds": round(time.monotonic() - begun, 1)})


def end_group(process: subprocess.Popen[bytes]) -> None:
    """All processes of a part, which has a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            process.poll()  # or it stays as a zombie
            os.killpg(process.pid, 0)
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def pack(out: Path, scratch: Path) -> None:
    """The page, and one archive of it, the rows and each part's output."""
    try:
        text = page(read(out / RESULTS))
    except Exception as error:  # the next part runs all the same; the rows are there
        text = f"The page cannot be drawn: {error!r}"
    (out / "page.md").write_text(text, encoding="utf-8")
    with tarfile.open(out / "card.tar.gz", "w:gz") as archive:
        for path in (out / RESULTS, out / "page.md", *scratch.glob("*.log")):
            archive.add(path, path.name)


def earlier(path: Path) -> list[dict[str, Any]]:
    """The rows of an earlier result without its predictions; of one of the bench before this one,
    in this one's form.
    """
    if path.suffix == ".jsonl":
        return [row for row in read(path) if row["part"] != "predictions"]
    result = json.loads(path.read_text(encoding="utf-8"))
    rows = [{"part": "machine", "real": True, **result, "rows": None}]
    rows.append({"part": "calibrate", "calibration": result["calibration"]})
    kept = ("job", "script", "flags", "batch_size", "measured")
    for part in ("memory", "times"):
        rows += [{"part": part} | {name: row[name] for name in kept} for row in result["rows"]]
    return rows


def main(
    *,
    seconds: Annotated[float, "of time, all in all; each part's limit is its share"] = SECONDS,
    only: Annotated[list[str] | None, "parts by name"] = None,
    again: Annotated[Path | None, "a result whose trainings are predicted anew"] = None,
    out: Annotated[Path, "folder of the result"] = harness.ROOT / "bench" / "card" / "out",
) -> None:
    names = harness.choose(PARTS, ["predictions"] if again else only)
    chosen = {name: part for name, part in PARTS.items() if name in names}  # in their order
    rows = earlier(again) if again else [described()]
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    share = seconds / sum(part.limit_s for part in chosen.values())
    until = time.time()
    with tempfile.TemporaryDirectory(prefix="brimful-card-") as folder:
        scratch = Path(folder)
        for calibration in filter(None, (row.get("calibration") for row in rows)):
            measured = Calibration(**calibration | {"capability": tuple(calibration["capability"])})
            calibrations.keep(measured, scratch / "home")
        for name, part in chosen.items():
            until += part.limit_s * share
            harness.say(f"{name}: at most {until - time.time():.0f} s")
            run_part(Bench(name, part.call, rows[0]["card"], rows[0]["real"], out, scratch, until))
            pack(out, scratch)
    print((out / "page.md").read_text(encoding="utf-8"))
    print(f"written to {out}: {RESULTS}, page.md, card.tar.gz")


if __name__ == "__main__":
    harness.run(main)
