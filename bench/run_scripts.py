"""Predicts every program of bench/scripts as a user would: `python -m bench.run_scripts --python
LABEL=PATH ...`.

Each one goes through `brimful predict --json`, in a process of its own, in a folder of its own.
What came out is kept in bench/results/programs.json (a later run replaces the rows it made anew),
and docs/how/programs.md is written from that.
"""

import datetime
import json
import sys
import tempfile
from typing import Annotated, Any

from bench import harness
from bench.programs_page import PAGE, PROGRAMS_RESULT, keep
from bench.scripts_table import PROGRAMS, SCRIPTS, Program

TIME_LIMIT_S = 600


def prepare(program: Program, python: str, folder: str) -> None:
    """Runs the script for real on the CPU, where what it writes is to be taken up by the
    prediction.
    """
    if program.prepare:
        words = [python, str(SCRIPTS / program.script), *program.prepare]
        harness.output_of(words, folder)


def versions(python: str, modules: list[str]) -> dict[str, str]:
    """The versions of what the programs need, in that environment, of what is there, and of
    its Python.
    """
    source = (
        "import sys, json, torch; from bench.harness import versions; "
        "print(json.dumps(versions(*sys.argv[1:]) | {'torch': torch.__version__}))"
    )
    return json.loads(harness.output_of([python, "-c", source, *modules]))


def lacks(program: Program, python: str) -> list[str]:
    """The modules that the program needs and that environment has not."""
    source = (
        "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if not u.find_spec(n)])"
    )
    return harness.output_of([python, "-c", source, *program.needs]).split()


def row_of(program: Program, label: str, python: str) -> dict[str, Any]:
    """What one program showed in one environment; `missing`: modules that are not there."""
    today = datetime.date.today().isoformat()
    row: dict[str, Any] = {"program": program.key, "build": label, "date": today}
    missing = lacks(program, python)
    if missing:
        return {**row, "missing": missing}
    with tempfile.TemporaryDirectory() as folder:
        prepare(program, python, folder)
        verb = ["predict", "--gpu", program.gpu]
        report = harness.brimful(verb, program.command(python), folder, TIME_LIMIT_S)
    answer, row["exit_code"] = report["answer"], report["exit_code"]
    if row["exit_code"] not in (0, 3) or "error" in answer:
        return {**row, "error": answer.get("error")}
    names = ("peak", "largest_batch_size", "limited_by", "exact", "approximations")
    return {
        **row,
        "seconds": round(report["seconds"], 1),
        "traces": report["trials"],
        **{name: answer[name] for name in names},
        "phases": {name: peak["reserved_bytes"] for name, peak in answer["phases"].items()},
        "warnings": [warning["problem"] for warning in answer["warnings"]],
        "troubles": troubles(program, answer),
    }


def troubles(program: Program, answer: dict[str, Any]) -> list[str]:
    """What is not as the table says it: phases that were not seen, approximations that nobody
    expected.
    """
    phases = [f"{name} was not seen" for name in program.phases if name not in answer["phases"]]
    return phases + [
        f"approximated: {name}"
        for name in answer["approximations"]
        if name not in program.may_be_approximated
    ]


def main(
    *,
    python: Annotated[list[str] | None, "LABEL=PATH of an environment (else this, as CPU)"] = None,
    only: Annotated[list[str] | None, "names of programs"] = None,
) -> int:
    environments = dict(words.split("=", 1) for words in python or [f"CPU={sys.executable}"])
    known = {program.key: program for program in PROGRAMS}
    modules = sorted({name for program in PROGRAMS for name in program.needs} | {"torch", "numpy"})
    builds = {label: versions(path, modules) for label, path in environments.items()}
    rows = []
    for program in harness.choose(known, only).values():
        for label, path in environments.items():
            rows.append(row_of(program, label, path))
            harness.say(json.dumps({k: v for k, v in rows[-1].items() if k != "warnings"}))
            # what was measured stays, whatever comes next
            keep(PROGRAMS_RESULT, rows[-1:], ("program", "build"), list(known), builds=builds)
    failed = [
        f"{row['program']} ({row['build']})"
        for row in rows
        if "error" in row or row.get("troubles")
    ]
    print(f"{len(rows) - len(failed)} of {len(rows)} as expected; docs/how/{PAGE.name} is written")
    for name in failed:
        print(f"  not as expected: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(harness.run(main))
