"""The captcha recipe from top to bottom: images, network, loss, what is measured, and the settings
it trains with.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from brimful.values import EffectiveSetting
from brimful_train.batching import plan_batches
from brimful_train.config import Config
from brimful_train.data.arrays import Arrays
from brimful_train.distributed.ranks import device_for
from brimful_train.engine import Result, fit
from brimful_train.reporting.progress_log import settings_table
from brimful_train.task import Batch, Sum, Task
from recipes.captcha.cache import Captchas, images_of
from recipes.captcha.images import ImageOptions
from recipes.captcha.model import Reader
from recipes.captcha.reading import FILE_NAME, ReaderDescription
from recipes.common.description import check_resumable, write_description
from recipes.common.host_allocator import set_host_allocator
from recipes.common.running import is_first, say


def train(
    config: Config,
    images: ImageOptions,
    host_allocator: str,
    title: str,
    rows: Sequence[EffectiveSetting],
) -> Result:
    """One training. `rows` say of each flag where it comes from.

    Raises what `brimful_train.fit` raises, and UsageError for images that cannot be had.
    """
    allocator = set_host_allocator(host_allocator, device_for(config.device).type)
    description = ReaderDescription(
        images.look.alphabet,
        images.length,
        images.height,
        images.width,
        images.samples,
        images.image_seed,
    )
    check_resumable(config, FILE_NAME, dataclasses.asdict(description))
    # Images take minutes to draw: what cannot be meant is refused before that.
    plan_batches(
        config.batch, int(os.environ.get("WORLD_SIZE", "1")), images.samples, images.eval_samples
    )
    train_images, valid_images = images_of(images, say)
    torch.manual_seed(config.seed)  # the same weights on every rank
    model = Reader(
        len(images.look.alphabet), images.length, images.height, images.width, images.dropout
    )
    write_description(config.out, FILE_NAME, dataclasses.asdict(description))
    if is_first():
        rows = [*(row for row in rows if row.name != "host-allocator"), allocator]
        say("\n".join([title, *settings_table(rows)]))
    return fit(reader_task(model, train_images, valid_images), config)


def reader_task(model: nn.Module, train: Captchas, valid: Captchas) -> Task:
    """What the engine trains. The arrays stay uint8 until they are on the device."""

    def prepare(batch: Batch) -> Batch:
        images, labels = batch
        # (batch, 1, height, width) in [-1, 1]
        floats = images.unsqueeze(1).to(torch.float32).div_(127.5).sub_(1.0)
        return floats, labels.to(torch.int64)

    return Task(
        name="captcha",
        model=model,
        loss=loss,
        train_data=Arrays(train.images, train.labels),
        eval_data=Arrays(valid.images, valid.labels),
        measure=measure,
        best=("exact", "max"),
        prepare=prepare,
    )


def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy of a character; as all images have as many, the mean over images."""
    images, labels = batch
    return F.cross_entropy(model(images).flatten(0, 1), labels.flatten())


def measure(model: nn.Module, batch: Batch) -> Mapping[str, Sum]:
    """`loss`, and the shares of images read without a mistake and of characters read right."""
    images, labels = batch
    logits = model(images)
    right = logits.argmax(-1) == labels
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return {
        "loss": Sum(total, labels.numel()),
        "exact": Sum(right.all(-1).sum(), len(labels)),
        "characters": Sum(right.sum(), labels.numel()),
    }
