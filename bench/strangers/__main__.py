"""Predicts and audits every program of `bench.strangers.table`: `python -m bench.strangers --python
PATH --older PATH`.

PATH is the Python of an environment made from requirements.txt, that of --older from
requirements-older.txt (`make bench-strangers`): two packages ask for older ones. Each program runs
in a folder of its own, one at a time. What came out is kept in bench/results/strangers.json, and
docs/how/programs_of_others.md is written anew.
"""

import datetime
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.programs_page import STRANGERS_RESULT, keep
from bench.run_scripts import versions
from bench.strangers.table import HERE, STRANGERS, Stranger

PREDICTED = (
    *("peak", "largest_batch_size", "limited_by", "in_force", "not_seen", "ignores_batch_size"),
    "approximations",
)
TIME_LIMIT_S = 900  # of a trial, which other work on the machine slows down


def row_of(program: Stranger, python: str, folder: Path) -> dict[str, Any]:
    """What one program showed, or why it could not be run. Its data are below `folder`."""
    size = str(program.batch_size)
    command = program.command(str(Path(python).parent), str(_data(program.data, python, folder)))
    given = [word.replace("{batch_size}", size) for word in command]
    setting = ["--set", f"batch_size={size}"]
    predicted = _asked(["predict", *setting], PREDICTED, program.gpu, command, folder)
    audited = _asked(["audit"], ("findings", "effective"), program.gpu, given, folder)
    if "findings" in audited:
        audited["findings"] = [finding["problem"] for finding in audited["findings"]]
    return {
        "name": program.name,
        "package": program.package,
        "gpu": program.gpu,
        "batch_size": program.batch_size,
        "date": datetime.date.today().isoformat(),
        "predict": predicted,
        "audit": audited,
    }


def _data(kind: str, python: str, folder: Path) -> Path:
    place = folder / "data" / kind
    if not place.exists():
        harness.output_of([python, str(HERE / "make_data.py"), kind, str(place)])
        place.mkdir(parents=True, exist_ok=True)
    return place


def _asked(
    verb: list[str], names: Sequence[str], gpu: str, command: list[str], folder: Path
) -> dict[str, Any]:
    """What it took, and of the answer those names, or the error's words."""
    words = [*verb, "--gpu", gpu, "--time-limit", f"{TIME_LIMIT_S}s"]
    with tempfile.TemporaryDirectory(dir=folder) as work:
        report = harness.brimful(words, command, work, limit_s=20 * TIME_LIMIT_S)
    answer = json.loads(json.dumps(report["answer"]).replace(str(folder), "."))
    if "error" in answer:
        kept = {"error": answer["error"]["problem"]}
    else:
        kept = {name: answer.get(name) for name in names}
    return {"exit_code": report["exit_code"], "seconds": round(report["seconds"], 1), **kept}


def main(
    *,
    python: Annotated[str, "of the environment that has the programs"],
    older: Annotated[str, "of the environment that has those which ask for older packages"],
    only: Annotated[list[str] | None, "names of programs, or of their packages"] = None,
) -> None:
    names = [program.name for program in STRANGERS]
    chosen = [
        program
        for program in STRANGERS
        if not only or program.name in only or program.package in only
    ]
    if not chosen:
        sys.exit(f"No program is called so. There are: {', '.join(names)}.")
    packages: dict[str, Any] = {}
    for its_python, is_older in ((older, True), (python, False)):
        if any(program.older == is_older for program in chosen):  # else no row is of its packages
            needed = sorted({program.package for program in STRANGERS if program.older == is_older})
            installed = versions(its_python, needed)
            if is_older:
                installed["torch of the older ones"] = installed.pop("torch")
            packages |= installed
    failed = []
    with tempfile.TemporaryDirectory(prefix="strangers-") as folder:
        for program in chosen:
            row = row_of(program, older if program.older else python, Path(folder))
            keep(STRANGERS_RESULT, [row], ("name",), names, packages=packages)
            harness.say(json.dumps(row))
            failed += [program.name] if "error" in row["predict"] or "error" in row["audit"] else []
    print(f"{len(chosen) - len(failed)} of {len(chosen)} run{': not ' if failed else ''}", end="")
    print(", ".join(failed))


if __name__ == "__main__":
    harness.run(main)
