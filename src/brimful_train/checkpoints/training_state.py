"""What a checkpoint of a training holds, and what must agree before a training goes on from one."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from brimful.errors import UsageError
from brimful_train.config import Config
from brimful_train.distributed.parallel import load_sharded

NAMED = 4  # of what differs, in an error
# Settings that may change between runs without a message: where things are written, how often, and
# what only costs time.
UNREPORTED = (
    "out",
    "log_every_s",
    "tensorboard",
    "checkpoints",
    "data",
    "eval_every_epochs",
    "memory_budget",
    "device",
    "backend",
)


def load_model(
    module: nn.Module, state: Mapping[str, torch.Tensor], where: str, *, sharded: bool = False
) -> None:
    """Raises UsageError, naming what differs, where `state` is of another model."""
    held = module.state_dict()
    wrong = [f"{name} is not in the checkpoint" for name in held if name not in state]
    wrong += [f"{name} is not in the model" for name in state if name not in held]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)} in the checkpoint and "
        f"{tuple(tensor.shape)} in the model"
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor) and name in state and state[name].shape != tensor.shape
    ]
    if wrong:
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise UsageError(
            f"The checkpoint {where} is of another model: {'; '.join(wrong[:NAMED])}{more}.",
            "Its weights cannot be loaded into this one.",
            "Resume with the model it was made with, choose another folder, or set "
            'config.checkpoints.resume to "no".',
        )
    if sharded:
        load_sharded(module, state)
    else:
        module.load_state_dict(dict(state))


def check_data(saved: Mapping[str, Any], samples: int, where: str) -> None:
    if saved["train_samples"] != samples:
        raise UsageError(
            f"The checkpoint {where} was made on {saved['train_samples']:,} training samples, "
            f"and there are {samples:,} now.",
            "Where it stood in its epoch means nothing in other data.",
            'Resume with the same data, or set config.checkpoints.resume to "no".',
        )


def changed_settings(saved: Mapping[str, Any], config: Config) -> Iterator[str]:
    """A sentence for each setting that is not what the checkpoint was made with."""
    before, now = flat(saved), flat(config.as_json())
    for name in now:
        if name.split(".")[0] in UNREPORTED or name not in before or before[name] == now[name]:
            continue
        sentence = (
            f"config.{name} was {before[name]!r} when the checkpoint was made and is "
            f"{now[name]!r} now."
        )
        if name == "seed":
            sentence += (
                " The order of the samples is another one: in the epoch under way some will be "
                "met twice and others not at all."
            )
        yield sentence


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested settings by their dotted names."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        made |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {prefix + name: value}
        )
    return made
