"""What the trials of one session saw of the script's data sets, handed on so that the next trial need not look again.

The trials of a session run one command with other batch sizes, workers and ways of running it: its samples are the same. Each
trial checks that by some of them, and scans anew where they differ (`brimful_inside.probe.worst_case.scan_cache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from brimful.values import TrialResult
from brimful_inside.wire import SCANS_FILE


def files_of(samples: Sequence[TrialResult], record_folder: Path) -> tuple[Path, ...]:
    """The files of those trials that scanned something themselves, the newest last; a trial may have failed later on."""
    return tuple(path for sample in samples for path in sorted((record_folder / sample.folder).glob(SCANS_FILE % "*")))
