"""The programs of this bench, and the cards that they are asked about."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Job:
    script: str
    memory: str  # of the card
    batch_size: int = 4  # that is asked about
    cards: int = 1

    def command(self, **settings: str) -> list[str]:
        """With a place for the batch size where none is given."""
        words = [sys.executable, str(SCRIPTS / self.script)]
        for name, value in ({"batch_size": "{batch_size}"} | settings).items():
            words += [f"--{name.replace('_', '-')}", value]
        return words


PROGRAMS = {
    "lstm": Job("lstm.py", "3GiB"),
    "encoder": Job("encoder.py", "3GiB"),
}
