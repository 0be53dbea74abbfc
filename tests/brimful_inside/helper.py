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
    **config,
) -> Trial:
    """Runs `script` (source text, or a command's arguments after python) as one trial, which has to
    end with `exit_code` where that is given; `config`: fields of TrialConfig. An imaginary device
    is `CARD` unless they say otherwise."""
    folder = tmp_path / "trial"
    folder.mkdir(exist_ok=True)
    work = cwd or tmp_path / "work"
    work.mkdir(exist_ok=True)
    if isinstance(script, str):
        (work / "script.py").write_text(textwrap.dedent(script))
        script = ["script.py"]
    asked = {"device": "cpu", "worst_batch": False, "keep_out": False, **config}
    if asked["device"] == "imaginary":
        asked = {"card": CARD, **asked}
    (folder / "trial_config.json").write_text(
        json.dumps(dataclasses.asdict(config_of(folder=str(folder), **asked)))
    )
    ours = {
        "PYTHONPATH": os.pathsep.join((str(BOOTSTRAP), WITHOUT_DYNAMO)),
        "BRIMFUL_TRIAL_CONFIG": str(folder / "trial_config.json"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # as trials have it
    }
    done = subprocess.run(
        [*python, *through, *script, *argv],
        cwd=work,
        env={**os.environ, **ours, **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert exit_code in (None, done.returncode), done.stderr
    events = {int(p.stem.split("-")[1]): _events(p) for p in sorted(folder.glob("wire-*.jsonl"))}
    return Trial(done.returncode, done.stdout, done.stderr, folder, events)


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
