"""Imitates the parent: writes the trial config, runs a script with the bootstrap folder on its
path, and reads the reports."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import brimful_inside
from brimful_inside import wire
from tests.brimful_inside import forked
from tests.conftest import WITHOUT_DYNAMO

BOOTSTRAP = Path(brimful_inside.__file__).resolve().parent / "bootstrap"
CARD = {
    "name": "A card",
    "total_bytes": 8 << 30,
    "context_bytes": 500 << 20,
    "capability": [8, 0],
    "multiprocessors": 108,
}


@dataclass(frozen=True)
class Trial:
    """What came back of one trial."""

    exit_code: int
    stdout: str
    stderr: str
    folder: Path
    events: dict[int, list[tuple[str, dict]]]  # by process id: (name, fields)

    def all(self, name: str) -> list[dict]:
        return [
            fields for events in self.events.values() for kind, fields in events if kind == name
        ]

    @property
    def processes(self) -> list[dict]:
        return self.all("process_started")

    @property
    def failures(self) -> list[dict]:
        return self.all("failure")

    @property
    def reports(self) -> list[dict]:
        """The last report of each process, by rank."""
        last = [
            [f for kind, f in events if kind == "report"][-1:] for events in self.events.values()
        ]
        return sorted((report for reports in last for report in reports), key=lambda r: r["rank"])

    @property
    def report(self) -> dict:
        """The report of the one process that trained."""
        (report,) = [r for r in self.reports if r["steps"]] or self.reports
        return report


def config_of(**asked) -> wire.TrialConfig:
    """With what stands in its groups given by name as well."""
    names = [field.name for field in dataclasses.fields(wire.Ends) if field.name in asked]
    ends = wire.Ends(**{name: asked.pop(name) for name in names})
    return wire.TrialConfig(ends=ends, **asked)


def run_trial(
    tmp_path: Path,
    script: str | list[str],
    *,
    argv: tuple[str, ...] = (),
    env: dict | None = None,
    through: tuple[str, ...] = (),
    cwd: Path | None = None,
    timeout_s: float = 240,
    python: tuple[str, ...] = (sys.executable,),
    exit_code: int | None = None,
    fork: bool = True,
    **config,
) -> Trial:
    """Runs `script` (source text, or a command's arguments after python) as one trial, which has to
    end with `exit_code` where that is given; `config`: fields of TrialConfig. An imaginary device
    is `CARD` unless they say otherwise. With `fork` a process that has imported torch is forked for
    script.py, where nothing else stands before it, files are not kept apart and it is no
    whole run."""
    folder = tmp_path / "trial"
    folder.mkdir(exist_ok=True)
    work = cwd or tmp_path / "work"
    work.mkdir(exist_ok=True)
    asked = {"device": "cpu", "worst_batch": False, "keep_out": False, **config}
    if asked["device"] == "imaginary":
        asked = {"card": CARD, **asked}
    if isinstance(script, str):
        (work / "script.py").write_text(textwrap.dedent(script))
        script = ["script.py"]
    forks = fork and script == ["script.py"] and not (env or through or asked["keep_out"])
    forks = forks and python == (sys.executable,) and asked.get("cut", True)
    written = config_of(folder=str(folder), **asked)
    (folder / "trial_config.json").write_text(json.dumps(dataclasses.asdict(written)))
    ours = {
        "PYTHONPATH": os.pathsep.join((str(BOOTSTRAP), WITHOUT_DYNAMO)),
        "BRIMFUL_TRIAL_CONFIG": str(folder / "trial_config.json"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # as trials have it
    }
    variables = {**os.environ, **ours, **(env or {})}
    code = forked.run(written, argv, work, variables, timeout_s) if forks else None
    if code is not None:
        out, err = ((folder / f"{name}.txt").read_text() for name in ("stdout", "stderr"))
    else:
        done = subprocess.run(
            [*python, *through, *script, *argv],
            cwd=work,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    assert exit_code in (None, code), err
    events = {int(p.stem.split("-")[1]): _events(p) for p in sorted(folder.glob("wire-*.jsonl"))}
    return Trial(code, out, err, folder, events)


def _events(path: Path) -> list[tuple[str, dict]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [(row.pop("event"), row) for row in rows]


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file below `folder`: time of change in ns, and a hash of its bytes. Folders count as
    well."""
    texts = {}
    for path in sorted(folder.rglob("*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        texts[str(path.relative_to(folder))] = (path.stat().st_mtime_ns if digest else 0, digest)
    return texts
