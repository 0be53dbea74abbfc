"""What a recipe's model was made of: a small JSON file beside its checkpoints, which prediction
needs and going on compares.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

from brimful.errors import UsageError
from brimful_inside.script import keeps_writes_out
from brimful_train.config import CheckpointConfig, Config
from recipes.common.cache import write_whole
from recipes.common.running import is_first, say

T = TypeVar("T")


def write_facts(out: Path, file_name: str, facts: Any) -> None:
    """By the first rank. `facts` is a dataclass of JSON values."""
    if is_first():
        write_whole(
            out / file_name,
            json.dumps(dataclasses.asdict(facts), indent=1, ensure_ascii=False) + "\n",
        )


def read_facts(path: Path, file_name: str, kind: type[T]) -> T | None:
    """Of the checkpoint, folder of checkpoints or `--out` at `path`: the nearest file of that name
    at it or above.
    """
    for folder in (path, *path.absolute().parents)[:4]:
        try:
            text = (folder / file_name).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            return kind(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{folder / file_name} cannot be read: {error}.",
                suggestion="Train into another --out.",
            ) from error
    return None


def facts_of(checkpoint: Path, file_name: str, kind: type[T]) -> tuple[Path, T]:
    """The folder of the training that a checkpoint belongs to, and its facts. Raises UsageError
    where there are none.
    """
    ask = "Give the --out of a training of this recipe with --checkpoint."
    if not checkpoint.exists():
        raise UsageError(f"There is no checkpoint at {checkpoint}.", suggestion=ask)
    facts = read_facts(checkpoint, file_name, kind)
    if facts is None:
        raise UsageError(
            f"No {file_name} at or above {checkpoint}.", "It says what the model was made of.", ask
        )
    return next(
        one for one in (checkpoint, *checkpoint.absolute().parents) if (one / file_name).is_file()
    ), facts


def check_resumable(config: Config, file_name: str, facts: Any) -> None:
    """A training goes on only with what it began with. Raises UsageError that names each
    difference.
    """
    out = config.out
    begun = (out / file_name).is_file() and (out / "checkpoints").is_dir()
    if not begun or config.checkpoints.resume != "auto" or keeps_writes_out():
        return
    found: Any = read_facts(out, file_name, type(facts))
    before, now = dataclasses.asdict(found), dataclasses.asdict(facts)
    differs = [
        f"{name.replace('_', ' ')} {_short(before[name])} and not {_short(now[name])}"
        for name in now
        if before[name] != now[name]
    ]
    if differs:
        raise UsageError(
            f"{out} holds a training of another configuration: it has {', '.join(differs)}.",
            "So its checkpoints cannot be gone on from.",
            "Choose another folder with --out, or begin anew in this one with --resume no.",
        )


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."


def trained_weights(checkpoint: Path) -> dict[str, Any]:
    """The model's tensors in a checkpoint, or in the best one (else the newest) of a training's
    folder.
    """
    from brimful_train.checkpoints.folder import Checkpoints

    folder = checkpoint / "checkpoints" if (checkpoint / "checkpoints").is_dir() else checkpoint
    checkpoints = Checkpoints(folder, CheckpointConfig(), say)
    if (checkpoint / "model.safetensors").is_file():
        return checkpoints.load(checkpoint).state["model"]
    loaded = checkpoints.best() or checkpoints.newest()
    if loaded is None:
        raise UsageError(
            f"{folder} holds no checkpoint.",
            suggestion="Give the --out of a training with --checkpoint.",
        )
    return loaded.state["model"]
