"""What the benches share: their command lines, the machine they ran on, processes of their own,
statistics, and the files that keep their results.

Standard library only, for some benches run where brimful's own needs are not installed.
"""

from __future__ import annotations  # an environment of Python 3.9 imports this as well

import argparse
import contextlib
import csv
import datetime
import gzip
import inspect
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
EVIDENCE = ROOT / "src" / "brimful" / "decide" / "evidence"
MIB = 1 << 20
# Of every bench: where its result goes.
Out = Annotated[Path, "folder of the result"]

_CALL = (
    "import importlib, json, sys; module, function, arguments = sys.argv[1:]; "
    "call = getattr(importlib.import_module(module), function); "
    "print(json.dumps(call(*json.loads(arguments))))"
)


def run(main: Callable[..., int | None], argv: Sequence[str] | None = None) -> int | None:
    """Call `main` with what the command line says.

    A parameter of `main` is a word of the command line, a keyword-only one is a flag:
    `Annotated[int, "its help"]`, a `list` for several words, a `Literal` for a choice.
    """
    about = inspect.getdoc(sys.modules[main.__module__]) or ""
    parser = argparse.ArgumentParser(description=about.partition("\n\n")[0])
    for name, parameter in inspect.signature(main, eval_str=True).parameters.items():
        _add_argument(parser, name, parameter)
    return main(**vars(parser.parse_args(argv)))


def _add_argument(parser: argparse.ArgumentParser, name: str, parameter: inspect.Parameter) -> None:
    kind, options = parameter.annotation, {}
    if get_origin(kind) is Annotated:
        kind, options["help"] = get_args(kind)[:2]
    if get_origin(kind) in (Union, types.UnionType):  # or None
        kind = get_args(kind)[0]
    is_list = get_origin(kind) is list
    if is_list:
        kind, options["nargs"] = get_args(kind)[0], "+"
        if parameter.default is None:  # given twice, its words add up
            options["action"] = "extend"
    if get_origin(kind) is Literal:
        options["choices"], kind = get_args(kind), str
    if parameter.default is not parameter.empty:
        options["default"] = parameter.default
    options |= {"action": "store_true"} if kind is bool else {"type": kind}  # type: ignore
    if parameter.kind is parameter.KEYWORD_ONLY:
        is_needed = parameter.default is parameter.empty
        parser.add_argument(f"--{name.replace('_', '-')}", **options, required=is_needed)
    elif is_list or parameter.default is parameter.empty:
        parser.add_argument(name, **options)
    else:
        parser.add_argument(name, nargs="?", **options)


def choose(table: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """The entries of those names, all without names. Exits where a name is none of the table's."""
    unknown = [name for name in names or () if name not in table]
    if unknown:
        sys.exit(f"There is no {', '.join(unknown)}. There are: {', '.join(table)}.")
    return {name: table[name] for name in names or table}


def cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"model name\s*:\s*(.+)", text)
    return match.group(1).strip() if match else platform.machine()


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def versions(*packages: str) -> dict[str, str]:
    """Of those that are installed, and of Python."""
    installed = {"python": platform.python_version()}
    for name in packages:
        try:
            installed[name] = version(name)
        except PackageNotFoundError:
            continue
    return installed


def heading(what: str, *packages: str) -> dict[str, Any]:
    """How every result begins: what was measured, where, when, and with which versions."""
    return {
        "what": what,
        "cpu": cpu_name(),
        "cores": cores(),
        "load_average": os.getloadavg(),
        "date": datetime.date.today().isoformat(),
        "versions": versions("torch", *packages),
    }


def keep(
    bench: str,
    result: dict[str, Any],
    folder: Path = RESULTS,
    *,
    of: str | None = None,
    rows: Any = None,
) -> Path:
    """Write a result to `bench`-`of`-year-month.json (`of`: a card or nothing; else this CPU), and
    its raw rows, which nobody reads in an editor, to a .rows.json.gz beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    subject = slug(cpu_name()) if of is None else of
    name = "-".join(filter(None, (bench, subject, f"{datetime.date.today():%Y-%m}")))
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"bench": bench, **result}, indent=1) + "\n", encoding="utf-8")
    if rows is not None:
        _rows_path(path).write_bytes(gzip.compress(json.dumps(rows).encode(), mtime=0))
    print(f"written to {path}")
    return path


def read_rows(result: Path) -> Any:
    """The raw rows beside a result file."""
    return json.loads(gzip.decompress(_rows_path(result).read_bytes()))


def _rows_path(result: Path) -> Path:
    return result.with_suffix(".rows.json.gz")


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows that others measured. Exits with a sentence where there are none."""
    if not path.is_file():
        sys.exit(f"There is no {path}: give the folder that holds the measured rows.")
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_names(path: Path) -> frozenset[str]:
    """Names of a text file, one a line; lines with # say why they stand there."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def flags(values: Mapping[str, Any]) -> list[str]:
    """Words of a command line: `--name value`; of what is True or False `--name` or `--no-name`."""
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words += [f"--{flag}", str(value)]
    return words


def by_turns(sides: Mapping[str, Callable[[], Any]], rounds: int) -> list[dict[str, Any]]:
    """What each side gives in each round; in every second one the last side begins."""
    rows = []
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        row = {side: sides[side]() for side in order}
        rows.append({side: row[side] for side in sides})
        say(f"  {number + 1}/{rounds}: {rows[-1]}")
    return rows


def attempted(
    make: Callable[[str], Any], names: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What is made of each name, and, of those of which nothing is, the words of the error."""
    made, failed = {}, {}
    for number, name in enumerate(names, 1):
        try:
            made[name] = make(name)
        except Exception as error:  # whatever a model does: it is named in the result
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {error}"
        say(f"{number}/{len(names)}: {name}")
    return made, failed


def span(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, and between which values the middle 80 % lie."""
    if len(values) < 2:
        raise ValueError(f"{len(values)} values have no spread")
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {"median": statistics.median(values), "p10": tenths[0], "p90": tenths[-1]}


def environment(home: str | Path | None = None, **variables: str) -> dict[str, str]:
    """Variables of a process: this clone on its path (`python -m recipes.captcha` works in any
    folder), one thread, no network; brimful's records under `home`.
    """
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BRIMFUL_TRIAL_CONFIG")}
    fixed = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    fixed["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**kept, **fixed, **({"BRIMFUL_HOME": str(home)} if home else {}), **variables}


def output_of(words: Sequence[str], folder: str | Path = ROOT, **variables: str) -> str:
    """What a command printed in this clone, or in another folder. Raises RuntimeError with its last
    words where it fails.
    """
    done = subprocess.run(
        list(words), cwd=folder, env=environment(**variables), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        )
    return done.stdout


def apart(module: str, function: str, *arguments: Any, **variables: str) -> Any:
    """The result of a function that is called in a process of its own, so that what another call
    left in memory is not its affair. Arguments and result are what JSON can hold.
    """
    words = [sys.executable, "-c", _CALL, module, function, json.dumps(arguments)]
    return json.loads(
        output_of(words, **variables).splitlines()[-1]
    )  # what it printed before aside


def processor_s() -> float:
    """What ended children have used of the processor, theirs included. Unlike the clock it needs no
    quiet machine.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def brimful(
    words: Sequence[str],
    command: Sequence[str],
    folder: str | Path,
    limit_s: float = 1800,
    tool: Sequence[str] = (sys.executable, "-m", "brimful"),
    **variables: str,
) -> dict[str, Any]:
    """A verb with its flags, asked of a command in `folder`: `exit_code` (None: not done in time),
    `seconds` of processor time, `trials`, and what `--json` printed as `answer`, or {"error": ...}
    with its last words.
    """
    records, before = Path(folder, "records"), processor_s()
    code, printed, said = None, "", f"not done after {limit_s} s"
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [*tool, *words, "--json", "--", *command],
            cwd=folder,
            env=environment(records, **variables),
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        code, printed, said = done.returncode, done.stdout, done.stderr
    try:  # a folder of this machine says nothing to anybody
        answer = json.loads(printed.replace(str(folder), "."))
    except ValueError:
        answer = {"error": {"problem": (said.strip().splitlines() or ["no words"])[-1]}}
    return {
        "exit_code": code,
        "seconds": processor_s() - before,
        "trials": len(list(records.rglob("trial_config.json"))),
        "answer": answer,
    }


def say(*words: Any) -> None:
    """Progress, on standard error."""
    print(*words, file=sys.stderr, flush=True)
