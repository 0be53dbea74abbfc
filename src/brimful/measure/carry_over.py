"""What the trials of one session hand on to the next: files that the script prepared, and scans of
its data sets.

A trial's writes stay in its own folder. The next trial gets those from before the first optimizer
step (a tokenized corpus, a download) and none from after it (checkpoints, logs), since no trial
resumes another. Each trial checks the scans by some of their samples, and scans anew where they
differ (`brimful_inside.probe.worst_case.scan_cache`).
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.values import TrialResult
from brimful_inside.wire import SCANS_FILE

KEPT_OUT = "kept_out"  # in a trial's folder: what its script wanted to write, by absolute path
_GONE = ".gone"  # marks of what it removed


def scan_files(earlier: Sequence[TrialResult], record_folder: Path) -> tuple[Path, ...]:
    """The scans of those trials that made some, the newest last; such a trial may have failed later
    on.
    """
    return tuple(
        path
        for result in earlier
        for path in sorted((record_folder / result.folder).glob(SCANS_FILE % "*"))
    )


def carry_over_files(earlier: Sequence[TrialResult], record_folder: Path, folder: Path) -> None:
    """Puts what the first trial that trained had prepared into the layer of a new trial at
    `folder`, by hard links.
    """
    for result in earlier:
        first_step = min(
            (r.first_step_unix_s for r in result.reports if r.first_step_unix_s), default=None
        )
        if first_step is not None:
            source = record_folder / result.folder / KEPT_OUT
            for path in _made_before(source, first_step):
                _link(path, folder / KEPT_OUT / path.relative_to(source))
            return


def _made_before(root: Path, unix_s: float) -> Iterator[Path]:
    """Regular files under `root` that were last written before that time, and that the user's own
    tree does not have.
    """
    for where, folders, names in os.walk(root):
        if Path(where) == root and _GONE in folders:
            folders.remove(_GONE)
        for name in names:
            path = Path(where) / name
            new = not os.path.lexists(os.sep + str(path.relative_to(root)))
            if new and path.is_file() and not path.is_symlink() and path.stat().st_mtime < unix_s:
                yield path


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
