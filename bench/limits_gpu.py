"""Whether the largest batch that fits the imaginary card fits the real one, and the next does not.

    python -m bench.limits_gpu --find-for measured-h200-2026-11.json  anywhere: the sizes
    python -m bench.limits_gpu --result limits-h200-2026-11.json      on the card: what fits

Both allocators may hold `LIMIT_BYTES` (torch.cuda.set_per_process_memory_fraction on the real
card), so that a large card shows its limit in seconds. Between the size that fits and the next
that was tried lies at most a hundredth.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

from bench import harness, measure_gpu
from bench.gpu.jobs import Job, job

LIMIT_BYTES = (4 << 30) + (1 << 20)
SMALL = "--layers 6 --width 384 --heads 6 --length 256 --steps 5"
# With the smallest and the largest size that are tried.
JOBS = (
    job("gpt-small", "gpt", f"{SMALL} --amp bf16", 4, 512),
    job("gpt-small-checkpoint", "gpt", f"{SMALL} --checkpoint", 4, 512),
    job("gpt-amp-bf16", "gpt", "--amp bf16 --steps 5", 1, 64),
    job("gpt-amp-checkpoint", "gpt", "--amp bf16 --checkpoint --steps 5", 1, 128),
    job(
        "gpt-fused-dropout",
        "gpt",
        "--amp fp16 --dropout 0.1 --optimizer adamw-fused --steps 8",
        1,
        64,
    ),
    job("resnet", "convnet", "--steps 5", 8, 1024),
    job("resnet-amp-channels-last", "convnet", "--amp bf16 --channels-last --steps 5", 8, 1024),
    job(
        "separable", "convnet", "--block separable --width 32 --optimizer adamw --steps 5", 8, 1024
    ),
    job("pairwise", "pairwise", "--steps 5", 64, 16384),
    job("pairwise-amp", "pairwise", "--amp bf16 --steps 5", 64, 16384),
    job("encoder-amp", "checkpointed_transformer", "--epochs 1", 16, 4096),
    job("lstm", "lstm_packed", "--epochs 3", 16, 2048),
)


def fits(of: Job, size: int, card: dict[str, Any] | None) -> bool:
    """Whether it trains to its end within the limit; `card`: the imaginary one, None for the real
    one. Raises ValueError with the error of a run that ended for another reason."""
    with tempfile.TemporaryDirectory() as folder:
        result = f"{folder}/result.json"
        where = f"real:{LIMIT_BYTES}"
        if card is not None:
            where = f"{folder}/card"
            Path(where).write_text(json.dumps({**card, "capacity_bytes": LIMIT_BYTES}))
        words = [where, result, str(of.script), *of.arguments(size)]
        error = measure_gpu.child(words, real=card is None)["error"]
    if error is None or "OutOfMemory" in error:
        return error is None
    raise ValueError(f"{of.name} at {size}: {error}")


def sizes(of: Job, card: dict[str, Any]) -> tuple[int, int]:
    """(the largest that was seen to fit, the smallest that was not)."""
    low, high = of.batch_sizes
    while high - low > max(1, low // 100):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(of, middle, card) else (low, middle)
    return low, high


def find(measured: Path) -> dict[str, Any]:
    card = measure_gpu.described(json.loads(measured.read_text(encoding="utf-8"))["card"])
    rows = {}
    for of in JOBS:
        rows[of.name] = sizes(of, card)
        harness.say(f"{of.name}: {rows[of.name][0]} fits, {rows[of.name][1]} does not")
    return {"card": card, "rows": [{"job": name, "sizes": pair} for name, pair in rows.items()]}


def main(
    *,
    find_for: Annotated[Path | None, "a result of measure_gpu, whose card is imagined"] = None,
    result: Annotated[Path | None, "what was found, to be run on the card of this machine"] = None,
    out: harness.Out = harness.RESULTS,
) -> None:
    if find_for is not None:
        found = {"bench": "limits_gpu", **harness.heading("largest batches within a limit")}
        found |= find(find_for)
        path = out / find_for.name.replace("measured", "limits")
    else:
        assert result is not None, "name --find-for or --result"
        path, found = result, json.loads(result.read_text(encoding="utf-8"))
        by_name = {of.name: of for of in JOBS}
        for row in found["rows"]:
            row["fitted"] = [fits(by_name[row["job"]], size, None) for size in row["sizes"]]
            harness.say(f"{row['job']}: {row['sizes']} {row['fitted']}")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    harness.run(main)
