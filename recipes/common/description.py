"""What a recipe's model was made of: a small JSON file beside its checkpoints, which prediction
needs and going on compares. A description is a mapping of JSON values.
"""

import json
import re
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from brimful.errors import UsageError
from brimful_inside.script import keeps_writes_out
from brimful_train.config import CheckpointConfig, Config
from brimful_train.training_state import flat
from recipes.common.cache import write_json
from recipes.common.running import is_first, say

T = TypeVar("T")


def write_description(out: Path, file_name: str, description: Mapping[str, Any]) -> None:
    """By the first rank."""
    if is_first():
        write_json(out / file_name, description)


def read_description(file: Path, kind: Callable[..., T] = dict) -> T:
    """Raises UsageError where the file is damaged."""
    try:
        return kind(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"{file} cannot be read: {error}.", suggestion="Train into another --out."
        ) from error


def description_of(checkpoint: Path, file_name: str, kind: Callable[..., T]) -> tuple[Path, T]:
    """The folder of the training that a checkpoint belongs to, and its description: the nearest
    file of that name at the checkpoint, folder of checkpoints or `--out`, or above. Raises
    UsageError where there is none.
    """
    ask = "Give the --out of a training of this recipe with --checkpoint."
    if not checkpoint.exists():
        raise UsageError(f"There is no checkpoint at {checkpoint}.", suggestion=ask)
    for folder in (checkpoint, *checkpoint.absolute().parents)[:4]:
        if (folder / file_name).is_file():
            return folder, read_description(folder / file_name, kind)
    raise UsageError(
        f"No {file_name} at or above {checkpoint}.", "It says what the model was made of.", ask
    )


def check_resumable(config: Config, file_name: str, description: Mapping[str, Any]) -> None:
    """A training goes on only with what it began with. Raises UsageError that names each
    difference.
    """
    out = config.out
    begun = (out / file_name).is_file() and (out / "checkpoints").is_dir()
    if not begun or config.checkpoints.resume != "auto" or keeps_writes_out():
        return
    differs = differences(out / file_name, description)
    if differs:
        raise UsageError(
            f"{out} holds a training of another configuration: it has {', '.join(differs)}.",
            "This training cannot go on from its checkpoints.",
            "Choose another folder with --out, or begin anew in this one with --resume no.",
        )


def require_same(out: Path, file_name: str, description: Mapping[str, Any], kind: str) -> None:
    """Writes the description into `out` for those that go on there. Raises UsageError where the
    folder holds results of another one of its `kind`."""
    file = out / file_name
    differs = differences(file, description) if file.is_file() else []
    if differs:
        raise UsageError(
            f"{out} holds results of another {kind}: it has {', '.join(differs)}.",
            "They cannot stand in one table.",
            "Choose another folder with --out.",
        )
    write_description(out, file_name, description)


def differences(file: Path, description: Mapping[str, Any]) -> list[str]:
    """What the description in a file has otherwise, in words."""
    before = flat(read_description(file))
    return [
        f"{re.sub('[._]', ' ', name)} {reprlib.repr(before.get(name))} and not "
        f"{reprlib.repr(value)}"
        for name, value in flat(description).items()
        if before.get(name) != value
    ]


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
