"""Predicts and audits every program of `bench.strangers.table`: `python -m bench.strangers --python
PATH`.

PATH is the Python of an environment made from requirements.txt (`make bench-strangers`). Each
program runs in a folder of its own, one at a time. What came out is kept in
bench/results/strangers.json, and docs/programs.md is written anew.
"""

import datetime
import json
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.programs_page import PAGE, STRANGERS_RESULT, whole_page
from bench.run_scripts import versions
from bench.strangers.table import HERE, STRANGERS, Stranger

RESULT = STRANGERS_RESULT
TIME_LIMIT_S = 900  # of a trial, which other work on the machine slows down


def row_of(program: Stranger, python: str, folder: Path) -> dict[str, Any]:
    """What one program showed, or why it could not be run. Its data are below `folder`."""
    size = str(program.batch_size)
    command = program.command(str(Path(python).parent), str(_data(program.data, python, folder)))
    given = [word.replace("{batch_size}", size) for word in command]
    setting = ["--set", f"batch_size={size}"]
    return {
        "name": program.name,
        "package": program.package,
        "gpu": program.gpu,
        "batch_size": program.batch_size,
        "date": datetime.date.today().isoformat(),
        "predict": _predicted(_asked(["predict", *setting], program.gpu, command, folder)),
        "audit": _audited(_asked(["audit"], program.gpu, given, folder)),
    }


def _data(kind: str, python: str, folder: Path) -> Path:
    place = folder / "data" / kind
    if not place.exists():
        harness.output_of([python, str(HERE / "make_data.py"), kind, str(place)])
        place.mkdir(parents=True, exist_ok=True)
    return place


def _asked(verb: list[str], gpu: str, command: list[str], folder: Path) -> dict[str, Any]:
    words = [*verb, "--gpu", gpu, "--time-limit", f"{TIME_LIMIT_S}s"]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        report = harness.brimful(words, command, work, limit_s=20 * TIME_LIMIT_S)
    text = json.dumps(report["answer"]).replace(str(folder), ".")
    return {**report, "seconds": round(report["seconds"], 1), "answer": json.loads(text)}


def _predicted(report: dict[str, Any]) -> dict[str, Any]:
    answer = report["answer"]
    names = (
        "peak",
        "largest_batch_size",
        "limited_by",
        "in_force",
        "not_seen",
        "ignores_batch_size",
        "approximations",
    )
    kept = (
        {name: answer.get(name) for name in names}
        if "error" not in answer
        else {"error": answer["error"]["problem"]}
    )
    return {"exit_code": report["exit_code"], "seconds": report["seconds"], **kept}


def _audited(report: dict[str, Any]) -> dict[str, Any]:
    answer = report["answer"]
    kept = (
        {"error": answer["error"]["problem"]}
        if "error" in answer
        else {
            "findings": [finding["problem"] for finding in answer["findings"]],
            "effective": answer["effective"],
        }
    )
    return {"exit_code": report["exit_code"], "seconds": report["seconds"], **kept}


def keep(rows: list[dict[str, Any]], packages: dict[str, str]) -> None:
    """Writes the rows into the result file in the place of those of the same program, and the page
    anew.
    """
    before = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    by_name = {row["name"]: row for row in [*before, *rows]}
    in_order = [by_name[program.name] for program in STRANGERS if program.name in by_name]
    RESULT.write_text(json.dumps({"packages": packages, "rows": in_order}, indent=1) + "\n")
    PAGE.write_text(whole_page(strangers=RESULT))


def main(
    *,
    python: Annotated[str, "of the environment that has the programs"],
    only: Annotated[list[str] | None, "names of programs, or of their packages"] = None,
) -> None:
    chosen = [
        program
        for program in STRANGERS
        if not only or program.name in only or program.package in only
    ]
    if not chosen:
        sys.exit(f"No program is called so. There are: {', '.join(s.name for s in STRANGERS)}.")
    packages = versions(python, sorted({program.package for program in STRANGERS}))
    failed = []
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        for program in chosen:
            row = row_of(program, python, Path(folder))
            keep([row], packages)
            harness.say(json.dumps(row))
            failed += [program.name] if "error" in row["predict"] or "error" in row["audit"] else []
    print(f"{len(chosen) - len(failed)} of {len(chosen)} run{': not ' if failed else ''}", end="")
    print(", ".join(failed))


if __name__ == "__main__":
    harness.run(main)
