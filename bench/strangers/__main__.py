"""Predicts and audits every program of `bench.strangers.table`: `python -m bench.strangers --python
PATH`.

PATH is the Python of an environment made from requirements.txt (`make bench-strangers`). Each
program runs in a folder of its own, one at a time. What came out is kept in
bench/results/strangers.json, and docs/programs.md is written anew.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.programs_page import PAGE, STRANGERS_RESULT, whole_page
from bench.run_scripts import environment, processor_seconds, versions
from bench.strangers.table import HERE, STRANGERS, Stranger

RESULT = STRANGERS_RESULT
TIME_LIMIT_S = 900  # of a trial, which other work on the machine slows down


class Runner:
    """Runs programs of one environment, with their data below `folder`."""

    def __init__(self, python: str, folder: Path):
        self._python = python
        self._folder = folder

    def row(self, one: Stranger) -> dict[str, Any]:
        """What one program showed, or why it could not be run."""
        row = {
            "name": one.name,
            "package": one.package,
            "gpu": one.gpu,
            "batch_size": one.batch_size,
        }
        row["date"] = datetime.date.today().isoformat()
        data = self._data(one.data)
        command = one.command(str(Path(self._python).parent), str(data))
        given = [word.replace("{batch_size}", str(one.batch_size)) for word in command]
        row["predict"] = _predicted(
            self._brimful("predict", one, ["--set", f"batch_size={one.batch_size}", "--", *command])
        )
        row["audit"] = _audited(self._brimful("audit", one, ["--", *given]))
        return row

    def _data(self, kind: str) -> Path:
        place = self._folder / "data" / kind
        if not place.exists():
            words = [self._python, str(HERE / "make_data.py"), kind, str(place)]
            subprocess.run(
                words, check=True, capture_output=True, env=environment(str(self._folder))
            )
            place.mkdir(parents=True, exist_ok=True)
        return place

    def _brimful(self, verb: str, one: Stranger, words: list[str]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            asked = [verb, "--gpu", one.gpu, "--json", "--time-limit", f"{TIME_LIMIT_S}s"]
            before = processor_seconds()
            done = subprocess.run(
                [sys.executable, "-m", "brimful", *asked, *words],
                cwd=folder, env=environment(folder + "/records"), capture_output=True, text=True,
            )  # fmt: skip
            seconds = round(processor_seconds() - before, 1)
        try:
            answer = json.loads(done.stdout.replace(folder, ".").replace(str(self._folder), "."))
        except ValueError:
            answer = {"error": {"problem": (done.stderr.strip().splitlines() or ["no words"])[-1]}}
        return {"exit_code": done.returncode, "seconds": seconds, "answer": answer}


def _predicted(seen: dict[str, Any]) -> dict[str, Any]:
    answer = seen["answer"]
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
    return {"exit_code": seen["exit_code"], "seconds": seen["seconds"], **kept}


def _audited(seen: dict[str, Any]) -> dict[str, Any]:
    answer = seen["answer"]
    kept = {"error": answer["error"]["problem"]} if "error" in answer else {}
    if not kept:
        kept = {
            "findings": [one["problem"] for one in answer["findings"]],
            "effective": answer["effective"],
        }
    return {"exit_code": seen["exit_code"], "seconds": seen["seconds"], **kept}


def keep(rows: list[dict[str, Any]], packages: dict[str, str]) -> None:
    """Writes the rows into the result file in the place of those of the same program, and the page
    anew.
    """
    before = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    found = {row["name"]: row for row in [*before, *rows]}
    in_order = [found[one.name] for one in STRANGERS if one.name in found]
    RESULT.write_text(json.dumps({"packages": packages, "rows": in_order}, indent=1) + "\n")
    PAGE.write_text(whole_page(strangers=RESULT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="of the environment that has the programs")
    parser.add_argument("--only", nargs="*", help="names of programs, or of their packages")
    args = parser.parse_args()
    chosen = [
        one
        for one in STRANGERS
        if not args.only or one.name in args.only or one.package in args.only
    ]
    if not chosen:
        parser.error(
            f"no program is called so; there are {', '.join(one.name for one in STRANGERS)}"
        )
    packages = versions(args.python, sorted({one.package for one in STRANGERS} | {"torch"}))
    failed = []
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        runner = Runner(args.python, Path(folder))
        for one in chosen:
            row = runner.row(one)
            keep([row], packages)
            print(json.dumps(row), file=sys.stderr)
            failed += [one.name] if "error" in row["predict"] or "error" in row["audit"] else []
    print(
        f"{len(chosen) - len(failed)} of {len(chosen)} "
        f"run{': not ' if failed else ''}{', '.join(failed)}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
