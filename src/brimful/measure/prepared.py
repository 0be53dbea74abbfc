"""What a script prepares before it trains (drawn images, a tokenized corpus, a download), handed on from trial to trial.

A trial's writes stay in its own folder, so each trial would prepare the same again. Files that an earlier trial of the same
record made before its first optimizer step are therefore there for the next one; what came later (checkpoints, logs) is not,
for no trial goes on from another. The user's own files are touched by none of this.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.values import TrialResult

KEPT_OUT = "kept_out"  # in a trial's folder: what its script wanted to write, by absolute path
_GONE = ".gone"  # marks of what it removed


def carry_over(samples: Sequence[TrialResult], record_folder: Path, folder: Path) -> None:
    """Puts what the first trial that trained has prepared into the layer of a new trial at `folder`, by hard links."""
    for sample in samples:
        first_step = min((r.first_step_unix_s for r in sample.reports if r.first_step_unix_s), default=None)
        if first_step is not None:
            source = record_folder / sample.folder / KEPT_OUT
            for path in _made_before(source, first_step):
                _link(path, folder / KEPT_OUT / path.relative_to(source))
            return


def _made_before(root: Path, unix_s: float) -> Iterator[Path]:
    """Regular files under `root` that were last written before that time, and that the user's own tree does not have."""
    for where, folders, names in os.walk(root):
        if Path(where) == root and _GONE in folders:
            folders.remove(_GONE)
        for name in names:
            path = Path(where) / name
            new = not os.path.lexists(os.sep + str(path.relative_to(root)))
            if new and path.is_file() and not path.is_symlink() and path.stat().st_mtime < unix_s:
                yield path


def _link(source: Path, target: Path) -> None:
    """A hard link, or a copy where the file system has none. What the new trial cannot be given it prepares itself."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
