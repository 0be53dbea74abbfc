"""`brimful check`: its options."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from brimful.cli import views
from brimful.cli.options import Json, flag
from brimful.trials.session import Options


def check(
    *jobs: str,
    update: Annotated[bool, flag()] = False,
    markdown: Annotated[bool, flag()] = False,
    snapshot: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    home: Path | None = None,
    json: Json = False,
) -> int:
    """Does this change take more memory, and which line does it?

    Ends with exit code 3 where a job of brimful.toml passes a limit beside its baseline.

    Parameters
    ----------
    jobs
        Names of jobs of brimful.toml, or of [tool.brimful] in pyproject.toml; all if none is given.
    update
        Write what is predicted to brimful.lock.json, the baseline of later calls, to be committed.
    markdown
        Print Markdown, for the comment of a pull request.
    snapshot
        Write each job's predicted run to this folder, for PyTorch's memory viewer.
    home
        Where records are kept; else BRIMFUL_HOME, else .brimful here.
    json
        One JSON object on standard output.
    """
    from brimful.verbs.check import check as verb

    with views.progress() as watcher:
        options = Options(home=home, watcher=watcher)
        record = verb(jobs, update=update, snapshot=snapshot, options=options)
    return views.show_check(record, json, markdown)
