"""`audit`, `tune`, `run` through an out-of-memory error, `monitor --once` and `compare`, as a user
calls them.
"""

import json
import shlex
import subprocess
import sys
import time
from typing import Any

from bench import harness
from bench.card.bench import Bench
from bench.card.jobs import SCRIPTS

EXAMPLES = harness.ROOT / "examples"
GPT = [sys.executable, str(EXAMPLES / "gpt" / "train.py")]
SMALL = ["--layers", "2", "--width", "64", "--context", "32", "--words", "1000", "--workers", "0"]
HIDDEN_CAP = [sys.executable, str(EXAMPLES / "traps" / "hidden_cap.py"), "--batch-size", "64"]
# More than any card holds: a batch of 64 is predicted to take 71 GiB.
TOO_LARGE = [*GPT, "--batch-size", "512"]
IMAGINED_TOO_LARGE = "--layers 2 --width 256 --heads 4 --vocabulary 8192 --length 256 --steps 3"
LIMIT_S = 90.0  # of one command
MONITORED_S = 40.0  # at most, until a training steps


def too_large(bench: Bench) -> list[str]:
    """A training that runs out of memory. Without a card: on an imaginary one of 512 MiB."""
    if bench.real:
        return TOO_LARGE
    spec = bench.scratch / "too-large.json"
    card = bench.imaginary() | {"capacity_bytes": 512 << 20}
    spec.write_text(json.dumps({"result": str(spec.with_suffix(".result")), "card": card}))
    script = [str(SCRIPTS / "gpt.py"), *IMAGINED_TOO_LARGE.split(), "--batch-size", "16"]
    return [sys.executable, "-m", "bench.card.child", str(spec), *script]


def commands(bench: Bench) -> dict[str, tuple[list[str], str]]:
    """By verb: its words, and what its output has where it does what it should."""
    sizes = [shlex.join([*GPT, *SMALL, "--batch-size", size]) for size in ("8", "16")]
    searched = [*GPT, *SMALL, "--batch-size", "{batch_size}"]
    bounds = ("--max-batch-size", "32", "--time-limit", "30s" if bench.real else "60s")
    pair = ("--samples", "128", "--pairs", "1")
    return {
        "audit": (["audit", "--", *HIDDEN_CAP], "caps the batch size of 64 (--batch-size) at 2"),
        "tune": (["tune", *bounds, "--", *searched], "The command to paste"),
        "run": (["run", "--", *too_large(bench)], "ran out of memory"),
        "compare": (["compare", *pair, "--", *sizes], "samples"),
    }


def brimful(bench: Bench, words: list[str]) -> subprocess.Popen[str]:
    hidden = {} if bench.real else {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "brimful", *words],
        cwd=bench.scratch,
        env=harness.environment(bench.home, COLUMNS="200", **hidden),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(bench: Bench, verb: str, words: list[str], expected: str) -> dict[str, Any]:
    """How a command ended, and whether it said what it should."""
    begun, process = time.monotonic(), brimful(bench, words)
    try:
        output, _ = process.communicate(timeout=max(1.0, min(LIMIT_S, bench.left_s)))
    except subprocess.TimeoutExpired:
        process.terminate()  # brimful ends what it started
        output, _ = process.communicate()
    took = {"exit_code": process.returncode, "seconds": time.monotonic() - begun}
    is_so = process.returncode == 0 and expected in " ".join(output.split())
    return {"verb": verb, **took, "as_expected": is_so, "output": output[-3000:]}


def monitored(bench: Bench) -> dict[str, Any]:
    """`monitor --once` while a training goes on."""
    command = [*GPT, *SMALL, "--epochs", "10000"]
    training = brimful(bench, ["run", "--fresh", "--json", "--", *command])
    try:
        deadline = time.monotonic() + min(MONITORED_S, bench.left_s)
        while True:
            row = ended(bench, "monitor", ["monitor", "--once"], "samples/s")
            if row["as_expected"] or time.monotonic() > deadline:
                return row
    finally:
        training.terminate()
        training.communicate()


def verbs(bench: Bench) -> None:
    bench.keep(monitored(bench))
    for verb, (words, expected) in commands(bench).items():
        bench.keep(ended(bench, verb, words, expected))
