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
    needs: tuple[str, ...] = ()  # modules besides torch
    samples: int | None = None  # of an epoch; the script's own number without
    accumulation: int | None = None  # batches a step, of scripts that have it

    def command(self, **settings: str) -> list[str]:
        """With a place for the batch size where none is given."""
        words = [sys.executable, str(SCRIPTS / self.script)]
        settings = {"batch_size": "{batch_size}"} | settings
        own = {"samples": self.samples, "accumulation": self.accumulation}
        settings |= {name: str(value) for name, value in own.items() if value}
        for name, value in settings.items():
            words += [f"--{name.replace('_', '-')}", value]
        return words


PROGRAMS = {
    "lstm": Job("lstm.py", "3GiB"),
    "encoder": Job("encoder.py", "3GiB"),
    "encoder, 16 batches a step": Job("encoder.py", "3GiB", accumulation=16),
    "t5": Job("t5.py", "4GiB", needs=("transformers",)),
    "trainer": Job("trainer_gpt2.py", "4GiB", needs=("transformers", "accelerate")),
    "sft": Job("sft_chat.py", "4GiB", needs=("transformers",)),
    "packed": Job("packed_lstm.py", "2GiB"),
    "gin": Job("gin.py", "2GiB"),
    "gat": Job("gat.py", "2GiB"),
    "fasterrcnn": Job("fasterrcnn.py", "4GiB", needs=("torchvision",)),
    "detector": Job("detector.py", "2GiB"),
    "speech": Job("speech.py", "3GiB"),
    "points": Job("points.py", "2GiB"),
    "dlrm": Job("dlrm.py", "2GiB"),
    "unet": Job("unet.py", "3GiB"),
}
