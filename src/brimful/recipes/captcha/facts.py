"""What must be known to use a trained reader again: written beside its checkpoints, read for prediction and on resume."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from brimful.errors import UsageError
from brimful.units import counted

__all__ = ["FILE_NAME", "Facts", "check_resumable", "read_facts", "write_facts"]

FILE_NAME = "captcha.json"


@dataclass(frozen=True)
class Facts:
    """Of a reader and of the images that it learned from."""

    alphabet: str
    length: int
    height: int
    width: int
    samples: int
    image_seed: int

    def sentence(self) -> str:
        shown = f"{self.length} of {self.alphabet!r} at {self.height} × {self.width}"
        return f"{shown}, {counted(self.samples, 'image')} of seed {self.image_seed}"


def write_facts(out: Path, facts: Facts) -> None:
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f"{FILE_NAME}.partial"
    partial.write_text(json.dumps(asdict(facts), indent=1) + "\n", encoding="utf-8")
    partial.replace(out / FILE_NAME)


def read_facts(path: Path) -> Facts | None:
    """Of the checkpoint, folder of checkpoints or `--out` at `path`: the nearest captcha.json at it or above."""
    for folder in (path, *path.absolute().parents)[:4]:
        try:
            text = (folder / FILE_NAME).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            return Facts(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{folder / FILE_NAME} cannot be read: {error}.", suggestion="Train into another --out."
            ) from error
    return None


def check_resumable(out: Path, facts: Facts) -> None:
    """A training goes on only with the images it began with. Raises UsageError that names both."""
    before = read_facts(out) if (out / FILE_NAME).is_file() and (out / "checkpoints").is_dir() else None
    if before is not None and before != facts:
        raise UsageError(
            f"{out} holds a training on {before.sentence()}.",
            f"Now it is {facts.sentence()}, so its checkpoints cannot be gone on from.",
            "Choose another folder with --out, or begin anew in this one with --resume no.",
        )
