"""Predicts every program of bench/scripts as a user would: `python -m bench.run_scripts --python
LABEL=PATH ...`.

Each one goes through `brimful predict --json`, in a process of its own, in a folder of its own.
What came out is kept in bench/results/programs.json (a later run replaces the rows it made anew),
and docs/programs.md is written from that.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.programs_page import PAGE, PROGRAMS_RESULT, whole_page
from bench.scripts_table import PROGRAMS, SCRIPTS, Program

ROOT = Path(__file__).parents[1]
RESULT = PROGRAMS_RESULT
TIME_LIMIT_S = 600


def processor_seconds() -> float:
    """What ended children have used of the processor, theirs included. Unlike the clock it needs no
    quiet machine.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def environment(home: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BRIMFUL_TRIAL_CONFIG")}
    return {
        **kept,
        "BRIMFUL_HOME": home,
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }


def prepare(program: Program, python: str, folder: str) -> None:
    """Runs the script for real on the CPU, where what it writes is to be taken up by the
    prediction.
    """
    if program.prepare:
        words = [python, str(SCRIPTS / program.script), *program.prepare]
        subprocess.run(
            words,
            cwd=folder,
            env=environment(folder),
            capture_output=True,
            check=True,
            timeout=TIME_LIMIT_S,
        )


def predicted(program: Program, python: str) -> dict[str, Any]:
    """One row: the prediction as `--json` prints it, or how it failed; with the processor seconds
    that it took.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-m",
            "brimful",
            "predict",
            "--gpu",
            program.gpu,
            "--json",
            "--",
            *program.command(python),
        ]
        prepare(program, python, folder)
        before = processor_seconds()
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment(folder + "/records"),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
        )
        seconds = processor_seconds() - before
        traces = len(list(Path(folder, "records").rglob("trial_config.json")))
    try:
        answer = json.loads(
            done.stdout.replace(folder, ".")
        )  # a folder of this machine says nothing to anybody
    except ValueError:
        answer = {"error": {"problem": done.stderr.strip().splitlines()[-1:] or "no words"}}
    return {"exit_code": done.returncode, "seconds": seconds, "traces": traces, "answer": answer}


def versions(python: str, modules: list[str]) -> dict[str, str]:
    """The versions of what the programs need, in that environment; what is not there is left out."""
    source = (
        "import importlib.metadata as m, json, sys\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "import torch; found['torch'] = torch.__version__\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [python, "-c", source, *modules],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIME_LIMIT_S,
    )
    return json.loads(done.stdout)


def lacks(program: Program, python: str) -> list[str]:
    """The modules that the program needs and that environment has not."""
    source = (
        "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is "
        "None])"
    )
    done = subprocess.run(
        [python, "-c", source, *program.needs],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()


def row_of(program: Program, label: str, python: str) -> dict[str, Any]:
    """What one program showed in one environment; `missing` where a module it needs is not there."""
    row: dict[str, Any] = {
        "program": program.key,
        "build": label,
        "date": datetime.date.today().isoformat(),
    }
    missing = lacks(program, python)
    if missing:
        return {**row, "missing": missing}
    try:
        seen = predicted(program, python)
    except subprocess.TimeoutExpired:
        return {**row, "exit_code": None, "error": {"problem": f"not done after {TIME_LIMIT_S} s"}}
    answer = seen["answer"]
    if seen["exit_code"] not in (0, 3) or "error" in answer:
        return {**row, "exit_code": seen["exit_code"], "error": answer.get("error")}
    return {
        **row,
        "exit_code": seen["exit_code"],
        "seconds": round(seen["seconds"], 1),
        "traces": seen["traces"],
        "peak": answer["peak"],
        "phases": {name: peak["reserved_bytes"] for name, peak in answer["phases"].items()},
        "largest_batch_size": answer["largest_batch_size"],
        "limited_by": answer["limited_by"],
        "exact": answer["exact"],
        "approximations": answer["approximations"],
        "warnings": [warning["problem"] for warning in answer["warnings"]],
        "troubles": troubles(program, answer),
    }


def troubles(program: Program, answer: dict[str, Any]) -> list[str]:
    """What is not as the table says it: phases that were not seen, approximations that nobody
    expected.
    """
    found = [f"{phase} was not seen" for phase in program.phases if phase not in answer["phases"]]
    found += [
        f"approximated: {name}"
        for name in answer["approximations"]
        if name not in program.may_be_approximated
    ]
    return found


def merged(
    result: dict[str, Any], rows: list[dict[str, Any]], builds: dict[str, Any]
) -> dict[str, Any]:
    """The result with `rows` in the place of those of the same program and build; programs no
    longer in the table go.
    """
    known = {program.key for program in PROGRAMS}
    kept = {
        (row["program"], row["build"]): row
        for row in result.get("rows", [])
        if row["program"] in known
    }
    kept.update({(row["program"], row["build"]): row for row in rows})
    order = {program.key: number for number, program in enumerate(PROGRAMS)}
    return {
        "builds": {**result.get("builds", {}), **builds},
        "rows": sorted(kept.values(), key=lambda row: (order[row["program"]], row["build"])),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python",
        action="append",
        metavar="LABEL=PATH",
        help="an environment; this one as CPU if none is named",
    )
    parser.add_argument("--only", nargs="*", help="names of programs")
    args = parser.parse_args()
    environments = dict(one.split("=", 1) for one in args.python or [f"CPU={sys.executable}"])
    unknown = sorted(set(args.only or []) - {program.key for program in PROGRAMS})
    if unknown:
        parser.error(
            f"there is no program {', '.join(unknown)}; there are "
            f"{', '.join(program.key for program in PROGRAMS)}"
        )
    chosen = [program for program in PROGRAMS if not args.only or program.key in args.only]
    modules = sorted({name for program in PROGRAMS for name in program.needs} | {"torch", "numpy"})
    builds = {label: versions(python, modules) for label, python in environments.items()}
    rows = []
    for program in chosen:
        for label, python in environments.items():
            rows.append(row_of(program, label, python))
            print(
                json.dumps({k: v for k, v in rows[-1].items() if k != "warnings"}), file=sys.stderr
            )
            keep(rows[-1:], builds)  # what was measured stays, whatever comes next
    failed = [
        f"{row['program']} ({row['build']})"
        for row in rows
        if "error" in row or row.get("troubles")
    ]
    print(
        f"{len(rows) - len(failed)} of {len(rows)} as expected; {PAGE.relative_to(ROOT)} is written"
    )
    for name in failed:
        print(f"  not as expected: {name}")
    return 1 if failed else 0


def keep(rows: list[dict[str, Any]], builds: dict[str, Any]) -> None:
    """Writes the rows into the result file, and the page anew."""
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    result = merged(before, rows, builds)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(whole_page(RESULT))


if __name__ == "__main__":
    sys.exit(main())
