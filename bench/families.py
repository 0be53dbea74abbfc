"""Whether intervals hold on families of networks that they were not made of, by the rows that
benches kept: nothing is predicted anew.

    python -m bench.families [--evidence]

For each family the interval is made of the errors of all others. Exits with 1 where of any family
fewer than 94 % of the runs lie inside, or more than 1 % above the upper end. Of few runs no share
says anything: one may lie outside, and above, of every family.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from bench import accuracy, harness, timm_rows
from brimful.decide.memory.intervals import SEVERAL_RANKS

TIMM, LLM = (harness.RESULTS / f"{name}.json" for name in ("timm-a100-40gb-2026-11", "llm-2026-11"))
LEAST_INSIDE, MOST_ABOVE = 0.94, 0.01
UNDER = 0.05  # of what was measured

Ends = Callable[[Sequence[float], Sequence[str]], tuple[float, float]]  # of errors and families


class Run(NamedTuple):
    """A measured run. `error`: (measured - predicted) / predicted."""

    family: str
    situation: str
    error: float


class Judged(NamedTuple):
    """An error, and the ends of the interval that other families make."""

    error: float
    low: float
    high: float


def counts(judged: Sequence[Judged]) -> tuple[int, int, int, int]:
    """How many runs there are, lie inside, lie above, were predicted at less than 95 % of what was
    measured.
    """
    inside, above = (
        sum(low <= error <= high for error, low, high in judged),
        sum(error > high for error, _, high in judged),
    )
    return len(judged), inside, above, sum(1 - 1 / (1 + of.error) > UNDER for of in judged)


def holds(judged: Sequence[Judged]) -> bool:
    runs, inside, above, _ = counts(judged)
    few_outside = runs - inside <= max(1, (1 - LEAST_INSIDE) * runs)
    return few_outside and above <= max(1, MOST_ABOVE * runs)


def timm_runs(result: Path = TIMM) -> list[Run]:
    """Those of models whose rows do not look broken, with the context that brimful predicts."""
    rows = timm_rows.kept_rows(result)
    family = timm_rows.families([row.model for row in rows])
    errors = accuracy.relative_to_predicted(
        [row.pair for row in rows], timm_rows.predicted_context()
    )
    return [
        Run(family[row.model], row.kind, error) for row, error in zip(rows, errors, strict=True)
    ]


def sharded_runs(result: Path = LLM) -> list[Run]:
    """Those of language models over several cards. A method (all weights, LoRA) is a family."""
    runs = []
    for line in harness.read_rows(result):
        measured, predicted = line["measured"]["device"], line["predicted"].get("device")
        if ", FSDP over " in line["kind"] and measured and predicted:
            method = line["name"].split(", ")[2]
            runs.append(Run(method, SEVERAL_RANKS, measured / predicted - 1))
    return runs


def judge(runs: Sequence[Run], ends: Ends) -> dict[str, list[Judged]]:
    """Of each family, how the intervals that all others make hold."""
    judged: dict[str, list[Judged]] = {}
    for family, situation in sorted({(run.family, run.situation) for run in runs}):
        alike = [run for run in runs if run.situation == situation]
        others = [run for run in alike if run.family != family]
        low, high = ends([run.error for run in others], [run.family for run in others])
        judged.setdefault(family, []).extend(
            Judged(run.error, min(low, 0), max(high, 0)) for run in alike if run.family == family
        )
    return judged


def table(judged: dict[str, list[Judged]]) -> list[str]:
    """A line for each family, and one for all together."""
    everything = {
        **judged,
        f"{len(judged)} families": [of for runs in judged.values() for of in runs],
    }
    lines = [f"{'left out':20}{'runs':>6}{'inside':>10}{'above':>10}{'5 % under':>10}"]
    for name, of in everything.items():
        runs, *numbers = counts(of)
        cells = "".join(f"{number / runs:>10.1%}" for number in numbers)
        cells += "" if holds(of) or name not in judged else "  does not hold"
        lines.append(f"{name:20}{runs:>6}{cells}")
    return lines


def write_evidence() -> None:
    """What intervals rest on, by the kept rows."""
    timm, llm = (json.loads(path.read_text(encoding="utf-8")) for path in (TIMM, LLM))
    timm_rows.write_evidence(
        timm_rows.kept_rows(TIMM), timm_rows.predicted_context(), timm, harness.EVIDENCE
    )
    errors = [run.error for run in sharded_runs()]
    basis = (
        "Mistral-7B, all weights and LoRA, by Transformers' Trainer with FSDP over two cards, "
        "measured by foundation-model-stack/fms-acceleration; traced with torch "
        f"{llm['versions']['torch']}"
    )
    ends, hardware = accuracy.ends_of_few(errors), "two NVIDIA A100-SXM4-80GB"
    evidence = accuracy.evidence_from(
        errors, SEVERAL_RANKS, llm["date"], hardware, basis, ends=ends
    )
    path = harness.EVIDENCE / "several-ranks-a100-80gb.json"
    path.write_text(accuracy.evidence_json(evidence), encoding="utf-8")


def main(*, evidence: Annotated[bool, "also write what intervals rest on"] = False) -> int:
    if evidence:
        write_evidence()
    judged = (
        judge(timm_runs(), accuracy.ends_by_families),
        judge(sharded_runs(), accuracy.ends_of_few),
    )
    print("\n".join(line for of in judged for line in [*table(of), ""]))
    return int(not all(holds(runs) for of in judged for runs in of.values()))


if __name__ == "__main__":
    raise SystemExit(harness.run(main))
