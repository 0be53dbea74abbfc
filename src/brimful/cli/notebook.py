"""Notebooks (`%load_ext brimful`): answers show themselves, and `%%brimful --gpu a100-40gb`
predicts the training of a cell, which is run as a script of its own and not in the notebook.
"""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from typing import Any

from brimful.record import read_record, record_home
from brimful.show.console import render_text
from brimful.show.html import render_frame
from brimful.show.sections import alone
from brimful.values import Audit, Plan, Prediction, Record

_ALONE = (
    "%%brimful runs its cell alone, as a script: names of other cells are not known there, lines "
    "of IPython (% and !) are no Python, and nothing of it has run in the notebook."
)


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls at `%load_ext brimful`. `shell`: an InteractiveShell."""
    shell.register_magic_function(predict_cell, "cell", "brimful")
    formatters = shell.display_formatter.formatters
    for kind in (Record, Prediction, Plan, Audit):
        formatters["text/html"].for_type(kind, lambda value: render_frame(_record(value)))
        formatters["text/plain"].for_type(
            kind, lambda value, printer, cycle: printer.text(render_text(_record(value)).rstrip())
        )


def _record(value: Record | Prediction | Plan | Audit) -> Record:
    return value if isinstance(value, Record) else alone(value)


def predict_cell(line: str, cell: str) -> Record | None:
    """%%brimful --gpu a100-40gb: whether this cell's training fits a card, which need not be here.

    The line takes the options of `brimful predict`. The cell is run for a few steps as a script of
    its own, in the notebook's folder, and changes nothing in the notebook.
    """
    if find_spec("torch") is None:
        print(
            f"error: the Python of this notebook ({sys.executable}) has no torch, so that no cell "
            "of it can train.\n  install torch there (a CPU build will do), or choose a kernel "
            "that has it",
            file=sys.stderr,
        )
        return None
    # It stays there: the command that the answer ends with names it.
    digest = hashlib.sha256(cell.encode()).hexdigest()[:8]
    script = record_home() / "cells" / f"cell-{digest}.py"
    record_home().mkdir(0o700, parents=True, exist_ok=True)
    script.parent.mkdir(exist_ok=True)
    script.write_text(cell, encoding="utf-8")
    python = [sys.executable, "-m", "brimful", "predict", *shlex.split(line), "--json"]
    paths = (os.getcwd(), os.environ.get("PYTHONPATH"))  # what the cell imports of its folder
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with tempfile.TemporaryFile("w+") as out:
        with subprocess.Popen(
            [*python, "--", sys.executable, str(script)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as child:
            assert child.stderr is not None
            try:
                for said in child.stderr:
                    print(said, end="", file=sys.stderr)
            except KeyboardInterrupt:
                child.terminate()  # it ends its own children
                raise
        out.seek(0)
        answer = json.loads(out.read() or "{}")
    if "record" in answer:
        return read_record(answer["record"])
    print(_ALONE, file=sys.stderr)
    return None
