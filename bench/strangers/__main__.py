"""Predicts and audits every program of `bench.strangers.table`: `python -m bench.strangers --python
PATH`.

PATH is the Python of an environment made from requirements.txt (`make bench-strangers`). Each
program runs in a folder of its own, one at a time. What came out is kept in
bench/results/strangers.json, and docs/programs.md is written anew.
"""

from __future__ import annotations

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


class Runner:
    """Runs programs of one environment, with their data below `folder`."""

    def __init__(self, python: str, folder: Path):
        self._python = python
        self._folder = folder

    def row(self, program: Stranger) -> dict[str, Any]:
        """What one program showed, or why it could not be run."""
        size = str(program.batch_size)
        command = program.command(str(Path(self._python).parent), str(self._data(program.data)))
        given = [word.replace("{batch_size}", size) for word in command]
        setting = ["--set", f"batch_size={size}"]
        return {
            "name": program.name,
            "package": program.package,
            "gpu": program.gpu,
            "batch_size": program.batch_size,
            "date": datetime.date.today().isoformat(),
            "predict": _predicted(self._brimful("predict", program.gpu, command, setting)),
            "audit": _audited(self._brimful("audit", program.gpu, given, [])),
        }

    def _data(self, kind: str) -> Path:
        place = self._folder / "data" / kind
        if not place.exists():
            harness.output_of([self._python, str(HERE / "make_data.py"), kind, str(place)])
            place.mkdir(parents=True, exist_ok=True)
        return place

    def _brimful(self, verb: str, gpu: str, command: list[str], more: list[str]) -> dict[str, Any]:
        words = [verb, "--gpu", gpu, "--time-limit", f"{TIME_LIMIT_S}s", *more]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            report = harness.brimful(words, command, folder, limit_s=20 * TIME_LIMIT_S)
        text = json.dumps(report["answer"]).replace(str(self._folder), ".")
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
    kept = {"error": answer["error"]["problem"]} if "error" in answer else {}
    if not kept:
        kept = {
            "findings": [finding["problem"] for finding in answer["findings"]],
            "effective": answer["effective"],
        }
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
        runner = Runner(python, Path(folder))
        for program in chosen:
            row = runner.row(program)
            keep([row], packages)
            harness.say(json.dumps(row))
            failed += [program.name] if "error" in row["predict"] or "error" in row["audit"] else []
    print(f"{len(chosen) - len(failed)} of {len(chosen)} run{': not ' if failed else ''}", end="")
    print(", ".join(failed))


if __name__ == "__main__":
    harness.run(main)
