"""Predictions against measurements: MLPs that others trained on an A100 40 GB and weighed with
nvidia-smi.

    python -m bench.predict <folder with mlp_a100_40gb.csv> [--rows 60] [--seed 0]

Each row becomes a run of the ordinary CUDA script bench/scripts/mlp.py on the imaginary card, in
this process (bench/traced.py). The measurements hold a CUDA context that depends on the driver, so
one constant is fitted: on one half of the rows, judged on the other.
"""

import random
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

from bench import accuracy, harness
from bench.harness import MIB
from bench.traced import traced
from brimful.decide.memory.size_model import fit_size_model
from brimful.measure.gpus import find_gpu, loaded_at_once, to_card
from brimful_inside.wire import Card

SCRIPT = harness.ROOT / "bench" / "scripts" / "mlp.py"
CSV = "mlp_a100_40gb.csv"


def read_rows(folder: Path, count: int, seed: int) -> list[dict[str, str]]:
    """A random `count` of the measured rows. Exits with a sentence where there are none."""
    rows = harness.read_table(folder / CSV)
    return random.Random(seed).sample(rows, min(count, len(rows)))


def flags_of(row: dict[str, str]) -> list[str]:
    """The script's words for a row."""
    names = ("input_size", "output_size", "depth", "architecture", "batch_size")
    return harness.flags({name: row[name] for name in names})


def predict_all(rows: list[dict[str, str]], card: Card) -> list[dict[str, object]]:
    """One line a row: its settings, what was measured and predicted (bytes), and how long that
    took.
    """
    lines = []
    for number, row in enumerate(rows):
        begun = time.perf_counter()
        fitted = fit_size_model({int(row["batch_size"]): traced(SCRIPT, flags_of(row), card)})
        assert fitted is not None, "of one trace there is always one"
        peak = fitted.replay_at(int(row["batch_size"])).peak
        lines.append(
            {
                **row,
                "device_peak_mib": int(row["device_peak_mib"]),
                "allocated_bytes": peak.allocated,
                "reserved_bytes": peak.reserved,
                "seconds": round(time.perf_counter() - begun, 2),
            }
        )
        left = int(row["device_peak_mib"]) - peak.reserved / MIB
        words = " ".join(row.values())
        harness.say(f"{number + 1}/{len(rows)}: {words} -> context {left:.0f} MiB")
    return lines


def judge(lines: list[dict], seed: int, catalogue_context: int) -> dict[str, Any]:
    """The figures: with one context fitted on a half and judged on the other, fitted on all rows,
    and the catalogue's.
    """
    pairs = pairs_of(lines)
    fitted, judged = ([pairs[i] for i in half] for half in accuracy.halves(len(pairs), seed))
    sides = {
        "held_out": (accuracy.context_bytes(fitted), judged),
        "all": (accuracy.context_bytes(pairs), pairs),
        "catalogue": (catalogue_context, pairs),
    }
    return {
        **{
            name: {"context_bytes": context, **accuracy.accuracy(rows, context)}
            for name, (context, rows) in sides.items()
        },
        "seconds_per_prediction": statistics.median(line["seconds"] for line in lines),
    }


def pairs_of(lines: list[dict]) -> list[accuracy.Pair]:
    return [accuracy.Pair(line["device_peak_mib"] * MIB, line["reserved_bytes"]) for line in lines]


def print_table(result: dict) -> None:
    columns = ("held_out", "all", "catalogue")
    print("\n".join(accuracy.table({name.replace("_", " "): result[name] for name in columns})))
    print(f"{'seconds per prediction':28}{result['seconds_per_prediction']:>12.2f}")


def main(
    data: Annotated[Path, f"the folder with {CSV}"],
    *,
    rows: int = 60,
    seed: int = 0,
    gpu: str = "a100-40gb",
    out: harness.Out = harness.RESULTS,
) -> None:
    # As the rows show: their machine had a driver that loads all kernels together.
    card = loaded_at_once(find_gpu(gpu))
    context = round(card.context_bytes.value)
    lines = predict_all(read_rows(data, rows, seed), to_card(card))
    judged = judge(lines, seed, context)
    print_table(judged)
    heading = harness.heading("device peak of MLPs (Adam, fp32), predicted, against nvidia-smi")
    heading["measured_by"] = "GPUMemNet (arXiv 2602.17817), one A100 40 GB; versions not known"
    result = {**heading, "gpu": card.key, "seed": seed, **judged}
    harness.keep("predict", result, out, of=card.key, rows=lines)


if __name__ == "__main__":
    harness.run(main)
