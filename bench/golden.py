"""What brimful says, frozen in one file: `make golden` writes bench/results/golden.json, and `git
diff` shows what changed.

    python -m bench.golden [--only mlp dcgan ...] [--check] [--timm-python PATH]

The file holds the peaks (bytes, by phase, and of each card), the largest batch size and the
predicted time of a step (seconds) of every program of bench/scripts, the captcha recipe and the
perceptrons of bench.predict, and the reserved peaks of 30 of timm's models. Rows that this
environment cannot make (timm needs one of its own: `make venv-cuda`) stay as they are. `--check`
compares instead of writing, and exits with 1 where a row differs.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from bench import harness, predict
from bench.run_scripts import lacks, prepare
from bench.scripts_table import PROGRAMS, by_key

RESULT = harness.RESULTS / "golden.json"
MLP = harness.RESULTS / "predict-a100-40gb-2026-11.json"
TIMM = harness.RESULTS / "timm-a100-40gb-2026-11.json"
TIMM_PYTHON = harness.ROOT / ".venv-timm" / "bin" / "python"
DIGITS = 9  # of a time: the last ones differ from machine to machine
TIMM_MODELS = 30
TIME_LIMIT_S = 1200
CAPTCHA = ("-m", "recipes.captcha", "--samples", "512", "--eval-samples", "64")
CAPTCHAS = {
    "captcha recipe": ("a100-40gb", (*CAPTCHA, "--batch-size", "{batch_size}")),
    "captcha recipe, large-batch": (
        "a100-40gb",
        (*CAPTCHA, "--preset", "large-batch", "--batch-size", "256"),
    ),
    "captcha recipe, rtx3080-20gb": ("rtx3080-20gb", (*CAPTCHA, "--batch-size", "64")),
}
_TIMM_ROWS = """
import json, sys
from bench.timm_rows import predict, trace, to_card, find_gpu
card = to_card(find_gpu("a100-40gb"))
sizes = {size: 0 for size in json.loads(sys.argv[2])}
rows = predict(sys.argv[1], sizes, lambda name, size: trace(name, size, card))
print(json.dumps({str(row.batch_size): row.reserved_bytes for row in rows}))
"""


def figures(answer: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a prediction as `--json` prints it."""
    speed = answer["speed"] or {}
    return {
        "verdict": answer["verdict"],
        "peak": bytes_of(answer["peak"]),
        "phases": {name: bytes_of(peak) for name, peak in answer["phases"].items()},
        "cards": [bytes_of(card["peak"]) for card in answer["cards"]],
        "largest_batch_size": answer["largest_batch_size"],
        "limited_by": answer["limited_by"],
        "exact": answer["exact"],
        "approximations": answer["approximations"],
        "step_s": speed and times_of(speed["step_s"]),
        "knee_batch_size": speed.get("knee_batch_size"),
    }


def times_of(estimate: dict[str, Any]) -> dict[str, Any]:
    """Seconds, to so many digits as all machines agree on."""
    value, *ends = (
        estimate[name] and float(f"{estimate[name]:.{DIGITS}g}")
        for name in ("value", "low", "high")
    )
    return {"value": value, "interval": None if None in ends else ends}


def bytes_of(peak: dict[str, Any] | None) -> dict[str, int] | None:
    return peak and {
        name: peak[name] for name in ("allocated_bytes", "reserved_bytes", "device_bytes")
    }


def predicted(gpu: str, words: list[str], folder: str) -> dict[str, Any]:
    """What `brimful predict --json` says of a command, or how it failed."""
    answer = harness.brimful(["predict", "--gpu", gpu], words, folder, TIME_LIMIT_S)["answer"]
    return {"failed": answer["error"]["problem"]} if "error" in answer else figures(answer)


def program_row(key: str) -> dict[str, Any] | None:
    program = by_key(key)
    if lacks(program, sys.executable):
        return None
    with tempfile.TemporaryDirectory() as folder:
        prepare(program, sys.executable, folder)
        return predicted(program.gpu, program.command(sys.executable), folder)


def command_row(gpu: str, words: tuple[str, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return predicted(gpu, [sys.executable, *words], folder)


def captcha_row(gpu: str, words: tuple[str, ...]) -> dict[str, Any]:
    """The images are drawn before: they take minutes, and no memory of the card."""
    cache = ("--cache", str(Path(tempfile.gettempdir()) / "brimful-golden-captchas"))
    harness.output_of([sys.executable, "-m", "recipes.captcha", "draw", *words[2:6], *cache])
    return command_row(gpu, (*words, *cache))


def mlp_rows() -> dict[str, tuple[str, ...]]:
    """The command of each perceptron by its name."""
    return {
        " ".join(("mlp", *flags[1::2])): (str(predict.SCRIPT), *flags)
        for flags in map(predict.flags_of, harness.read_rows(MLP))
    }


def timm_sizes() -> dict[str, list[int]]:
    sizes: dict[str, list[int]] = {}
    for row in harness.read_rows(TIMM):
        sizes.setdefault(row["model"], []).append(row["batch_size"])
    return {name: sizes[name] for name in random.Random(0).sample(sorted(sizes), TIMM_MODELS)}


def timm_row(python: Path, model: str, sizes: list[int]) -> dict[str, Any] | None:
    if not python.exists():
        return None
    try:
        return json.loads(harness.output_of([str(python), "-c", _TIMM_ROWS, model, str(sizes)]))
    except RuntimeError as error:
        return {"failed": str(error).strip().splitlines()[-3:]}


def jobs(timm_python: Path) -> Iterator[tuple[str, Any]]:
    """Each row's name, and what makes it."""
    for program in PROGRAMS:
        yield program.key, lambda key=program.key: program_row(key)
    for name, (gpu, words) in CAPTCHAS.items():
        yield name, lambda gpu=gpu, words=words: captcha_row(gpu, words)
    for name, words in mlp_rows().items():
        yield name, lambda words=words: command_row("a100-40gb", words)
    for model, sizes in timm_sizes().items():
        yield f"timm {model}", lambda model=model, sizes=sizes: timm_row(timm_python, model, sizes)


def main(
    *,
    only: Annotated[list[str] | None, "rows whose names begin so"] = None,
    check: Annotated[bool, "compare with the file, write nothing"] = False,
    timm_python: Annotated[Path, "of an environment with timm"] = TIMM_PYTHON,
    workers: int = 2,
) -> int:
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    chosen = {
        name: make for name, make in jobs(timm_python) if not only or name.startswith(tuple(only))
    }
    differ: list[str] = []
    now: dict[str, Any] = dict(before)
    with ThreadPoolExecutor(workers) as pool:
        for name, row in zip(chosen, pool.map(lambda make: make(), chosen.values()), strict=True):
            if row is None or row == before.get(name):
                continue
            differ.append(name)
            now[name] = row
            print(f"{name}:\n  before {json.dumps(before.get(name))}", flush=True)
            print(f"  now    {json.dumps(row)}", flush=True)
            if not check:  # after each row: an hour's work that is cut off is not lost
                RESULT.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
    print(
        f"{len(chosen)} rows, {len(differ)} of them differ from {RESULT.relative_to(harness.ROOT)}"
    )
    return int(check and bool(differ))


if __name__ == "__main__":
    sys.exit(harness.run(main))
