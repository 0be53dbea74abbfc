"""Predictions against measurements: language models that others fine-tuned on one or two cards and
weighed.

    python -m bench.llm_rows [<folder with llm_rows.csv>] [--only SmolLM2 ...]

Each row becomes one `brimful predict` of bench/finetune_llm.py as it stands: the model from its
public configuration, the training as its source describes it. Nothing is fitted. No GPU is needed,
but transformers, accelerate and peft are; rows of quantized models (bench/qlora_t4.csv, predicted
without a folder too) need bitsandbytes (125 MB), litgpt's rows litgpt: without it they are left
out. `--no-deps`, since litgpt wants an older huggingface-hub than Transformers does.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from bench import accuracy, harness
from bench.harness import MIB
from brimful.decide.memory.intervals import SEVERAL_RANKS

HERE = Path(__file__).parent
SCRIPT = HERE / "finetune_llm.py"
CSV = "llm_rows.csv"
PUBLIC = HERE / "qlora_t4.csv"
QUANTIZED = "qlora"  # of a row's method
TIME_LIMIT_S = 1800
RECIPES = {
    "fms-acceleration": "trainer",
    "torch-preflight": "encoder",
    "fitcheck": "adapters",
    "litgpt": "chunked",
}
KINDS = {
    "trainer": "Mistral-7B, full and LoRA, Transformers' Trainer",
    "encoder": "BERT and DistilBERT, bfloat16 autocast",
    "adapters": "TinyLlama and SmolLM2, LoRA",
    "quantized": "TinyLlama, QLoRA (nf4)",
    "chunked": "phi-1.5 and Llama-2-7B, LoRA, litgpt",
}
NEEDS = {"quantized": "bitsandbytes", "chunked": "litgpt"}  # what make setup does not install
# Tokens of the longest sample by litgpt's page (tutorials/resource-tables.md), where rows have
# another model's.
LONGEST = {"phi-1.5": "1044", "Llama-2-7b-hf": "1304"}
LIBRARYS_CHOICE = "as the library chooses"
VERSIONS = ("brimful", "transformers", "accelerate", "peft", "bitsandbytes", "litgpt")
FIGURES = ("allocated", "reserved", "device", "step")


def read_rows(folder: Path | None, only: Sequence[str] = ()) -> list[dict[str, str]]:
    """The measured rows, or those whose source, model or method holds one of the words. Exits with
    a sentence where none is.
    """
    files = [folder / CSV, PUBLIC] if folder else [PUBLIC]
    rows = [row for file in files for row in harness.read_table(file)]
    for row in rows:
        if row["source"] == "litgpt":
            row["sequence"] = LONGEST.get(row["model"], row["sequence"])
    kept = [row for row in rows if not only or any(word in name_of(row) for word in only)]
    return kept or sys.exit(f"None of the {len(rows)} rows holds one of: {' '.join(only)}")


def runnable(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without the rows whose library is not installed; says so."""
    for recipe, library in NEEDS.items():
        kept = [row for row in rows if recipe_of(row) != recipe]
        if len(kept) < len(rows) and not find_spec(library):
            left = f"{len(rows) - len(kept)} rows are left out: {KINDS[recipe]}"
            print(f"{left}. They need {library} (pip install --no-deps {library}).")
            rows = kept
    return rows


def recipe_of(row: dict[str, str]) -> str:
    return "quantized" if row["method"] == QUANTIZED else RECIPES[row["source"]]


def name_of(row: dict[str, str]) -> str:
    attention = "" if row["attention"] in ("flash", LIBRARYS_CHOICE) else f" {row['attention']}"
    cards = f"{row['cards']} x " if row["cards"] != "1" else ""
    size = f"{row['batch_per_card']} x {row['sequence']}"
    return (
        f"{row['source']}, {row['model']}, {row['method']}{attention}, {cards}{row['gpu']}, {size}"
    )


def kind_of(row: dict[str, str]) -> str:
    """What a line of the short table speaks of: the source's programs, on so many cards."""
    sharded = f", FSDP over {row['cards']}" if row["cards"] != "1" else ""
    return f"{KINDS[recipe_of(row)]}{sharded}, {row['gpu'].upper()}"


def measured(row: dict[str, str]) -> dict[str, float | None]:
    """Bytes and seconds; None where the source has none."""
    columns = {
        "allocated": "allocated_bytes",
        "reserved": "reserved_bytes",
        "device": "device_mib",
        "step": "step_s",
    }
    values = {name: float(row[column]) if row[column] else None for name, column in columns.items()}
    return values | {"device": values["device"] and values["device"] * MIB}


def command_of(row: dict[str, str]) -> list[str]:
    """The script as its source ran it. No flag for the batch size: it is predicted as it stands."""
    attention = None if row["attention"] == LIBRARYS_CHOICE else row["attention"]
    of = {
        "recipe": recipe_of(row),
        "model": row["model"],
        "method": row["method"],
        "attention": attention,
        "batch": int(row["batch_per_card"]),
        "length": int(row["sequence"]),
    }
    return [sys.executable, str(SCRIPT), json.dumps(of)]


def predicted(row: dict[str, str]) -> dict[str, Any]:
    """What `brimful predict` says of a row, in bytes and seconds; `failed`, its last words, where
    it does not.

    Of several cards one rank is started alone: under FSDP all hold the same.
    """
    verb = ["predict", "--no-what-if", "--batch-size-from", "none", "--gpu", row["gpu"]]
    verb += ["--ranks", row["cards"]] if row["cards"] != "1" else []
    with tempfile.TemporaryDirectory() as folder:
        answer = harness.brimful(verb, command_of(row), folder, TIME_LIMIT_S)["answer"]
    try:
        return figures_of(answer)
    except (KeyError, TypeError):  # an error, or no peak
        return {"failed": [str(answer.get("error", {}).get("problem", "no peak"))]}


def figures_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The numbers that are compared, of a prediction as `--json` prints it."""
    peak, speed = answer["peak"], answer["speed"]
    return {
        "verdict": answer["verdict"],
        **{name: peak[f"{name}_bytes"] for name in ("allocated", "reserved", "device")},
        "device_interval": peak["device_interval_bytes"],
        "step": speed and speed["step_s"]["value"],
        "step_interval": speed and [speed["step_s"]["low"], speed["step_s"]["high"]],
        "context_bytes": answer["gpu"]["context_bytes"]["value"],
    }


def errors(lines: Iterable[dict[str, Any]], name: str) -> list[float]:
    """(predicted - measured) / measured of one figure, of the rows that have it."""
    pairs = [(line["predicted"].get(name), line["measured"][name]) for line in lines]
    return [predicted / measured - 1 for predicted, measured in pairs if predicted and measured]


def held(lines: Iterable[dict[str, Any]], name: str) -> list[bool]:
    """Whether the predicted interval of the device peak or of the step's time holds what was
    measured.
    """
    ends = [(line["predicted"].get(f"{name}_interval"), line["measured"][name]) for line in lines]
    return [end[0] <= value <= end[1] for end, value in ends if end and value]


def summary(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each figure, over all its rows: the median and 95th percentile of the absolute errors, and
    the share held.
    """
    by_figure = {}
    for name in FIGURES:
        absolute = [abs(error) for error in errors(lines, name)]
        if absolute:
            inside = held(lines, name)
            by_figure[name] = {
                "rows": len(absolute),
                "median": statistics.median(absolute),
                "p95": accuracy.quantile(absolute, 0.95),
                "inside_interval": sum(inside) / len(inside) if inside else None,
            }
    return by_figure


def by_kind(lines: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """The summary of each kind of row."""
    return {
        kind: summary([line for line in lines if line["kind"] == kind])
        for kind in dict.fromkeys(line["kind"] for line in lines)
    }


def short_table(kinds: dict[str, dict[str, dict[str, Any]]]) -> list[str]:
    """One Markdown line a kind: of each figure its rows, the median and the 95th percentile of the
    absolute errors.
    """
    head = f"| rows of | {' | '.join(FIGURES)} |"
    cells = {
        kind: [_of_kind(figures.get(name)) for name in FIGURES] for kind, figures in kinds.items()
    }
    return [
        head,
        "|---" * (1 + len(FIGURES)) + "|",
        *(f"| {kind} | {' | '.join(of)} |" for kind, of in cells.items()),
    ]


def _of_kind(figure: dict[str, Any] | None) -> str:
    return f"{figure['median']:.1%}, {figure['p95']:.1%} ({figure['rows']})" if figure else ""


def table(lines: list[dict[str, Any]]) -> list[str]:
    """One Markdown line a row: what was measured, and how far the prediction is from it."""
    head = "| row | allocated, GiB | reserved, GiB | device, GiB | step, s |"
    rows = [head, "|---|---|---|---|---|"]
    for line in lines:
        cells = [cell(line, name) for name in FIGURES]
        failed = line["predicted"].get("failed")
        rows.append(
            f"| {line['name']} | "
            + (" | ".join(cells) if not failed else f"failed: {failed[-1]} | | |")
            + " |"
        )
    return rows


def cell(line: dict[str, Any], name: str) -> str:
    value, predicted = line["measured"][name], line["predicted"].get(name)
    if value is None:
        return ""
    text = f"{value:.2f}" if name == "step" else f"{value / (1 << 30):.2f}"
    return f"{text} {predicted / value - 1:+.1%}" if predicted else text


def line_of(row: dict[str, str]) -> dict[str, Any]:
    """A measured row beside its prediction."""
    return {
        "name": name_of(row),
        "kind": kind_of(row),
        "measured": measured(row),
        "predicted": predicted(row),
        "note": row["note"],
    }


def write_evidence(lines: Sequence[dict[str, Any]], result: dict[str, Any]) -> None:
    """What the interval of a card that trains with others rests on."""
    pairs = [
        (line["measured"]["device"], line["predicted"].get("device"))
        for line in lines
        if ", FSDP over " in line["kind"]
    ]
    errors = [measured / predicted - 1 for measured, predicted in pairs if measured and predicted]
    basis = (
        "Mistral-7B, all weights and LoRA, by Transformers' Trainer with FSDP over two cards, "
        "measured by foundation-model-stack/fms-acceleration; traced with torch "
        f"{result['versions']['torch']}"
    )
    evidence = accuracy.evidence_from(
        errors,
        SEVERAL_RANKS,
        result["date"],
        "two NVIDIA A100-SXM4-80GB",
        basis,
        ends=accuracy.ends_of_few(errors),
    )
    path = harness.EVIDENCE / "several-ranks-a100-80gb.json"
    path.write_text(accuracy.evidence_json(evidence), encoding="utf-8")


def main(
    data: Annotated[Path | None, f"folder with {CSV} (else the rows of {PUBLIC.name})"] = None,
    *,
    only: Annotated[list[str] | None, "the rows whose name holds one of the words"] = None,
    evidence: Annotated[bool, "also write what intervals of several ranks rest on"] = False,
    out: harness.Out = harness.RESULTS,
) -> None:
    lines = []
    for row in runnable(read_rows(data, only or ())):
        lines.append(line_of(row))
        print(table(lines[-1:])[-1], flush=True)
    figures = {"summary": summary(lines), "by_kind": by_kind(lines)}
    print(*(f"{name}: {of}" for name, of in figures["summary"].items()), sep="\n")
    print("", *short_table(figures["by_kind"]), sep="\n")
    if data and not only:
        what = "memory and step time of fine-tuning language models, predicted, against measured"
        result = {**harness.heading(what, *VERSIONS), **figures}
        harness.keep("llm", result, out, of="", rows=lines)
        if evidence:
            write_evidence(lines, result)


if __name__ == "__main__":
    harness.run(main)
