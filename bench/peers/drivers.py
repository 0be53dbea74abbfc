"""How each peer is asked for a batch size, as its documentation shows it: `FINDERS` run the
training, `PREDICTORS` give the bytes of one size.

`most` is the largest size that may be named; peers that go down from a first size begin there.
A peer is imported where it is used, since each may live in an environment of its own.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from bench.peers.jobs import BOXES, GIVEN, SIDE, Job, train


def lightning(mode: str, job: Job, most: int | None) -> int | None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.tuner import Tuner

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size, self.inner = 2, job.model()

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.inner(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

        def train_dataloader(self) -> Any:
            return job.loader(self.batch_size)

    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="gpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        limit = {} if most is None else {"max_val": most}
        return Tuner(trainer).scale_batch_size(Module(), mode=mode, **limit)


def accelerate(job: Job, most: int | None) -> int:
    from accelerate.utils import find_executable_batch_size

    return find_executable_batch_size(partial(train, job), starting_batch_size=most or job.start)()


def transformers(job: Job, most: int | None) -> int:
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        length = {"num_train_epochs": 1} if job.epoch else {"max_steps": job.steps(1)}
        trainer = Trainer(
            job.model(),
            TrainingArguments(
                folder,
                per_device_train_batch_size=most or job.start,
                auto_find_batch_size=True,
                dataloader_drop_last=True,
                remove_unused_columns=False,
                optim="adamw_torch",
                max_grad_norm=0,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                **length,
            ),
            job.collate,
            job.data(),
        )
        trainer.train()
        return trainer._train_batch_size


def toma(job: Job, most: int | None) -> int:
    from toma import toma as adaptive

    return adaptive.batch(partial(train, job), initial_batchsize=most or job.start)()


def composer(job: Job, most: int | None) -> int:
    """The micro-batch of a batch of the first size."""
    from composer import Trainer
    from composer.models import ComposerModel

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.inner = job.model()

        def forward(self, batch: Any) -> Any:
            return self.inner(**batch)

        def loss(self, outputs: Any, batch: Any, *_: Any, **__: Any) -> torch.Tensor:
            return outputs["loss"]

    model, size = Model(), most or job.start
    trainer = Trainer(
        model=model,
        optimizers=torch.optim.AdamW(model.parameters(), lr=1e-4),
        train_dataloader=job.loader(size),
        max_duration=f"{job.steps(size)}ba",
        device="gpu",
        device_train_microbatch_size="auto",
        progress_bar=False,
        auto_log_hparams=False,
    )
    trainer.fit()
    return trainer.state.device_train_microbatch_size


def ultralytics(job: Job, most: int | None) -> int:
    """It takes a detector of its own, and runs it forward and backward without its loss."""
    from ultralytics.utils.autobatch import autobatch

    network = job.model().network.cuda().train()
    network.register_forward_pre_hook(lambda _, inputs: GIVEN.append(len(inputs[0])))
    return autobatch(network, SIDE, max_num_obj=BOXES)


def mem_tracker(job: Job, batch_size: int) -> int:
    """Two steps on fake tensors: what is allocated at most. They are the CPU's, since a CPU build
    of PyTorch makes none for a card."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    batch = next(iter(job.loader(batch_size)))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        model = job.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
        inputs = {name: mode.from_tensor(value) for name, value in batch.items()}
        tracker = MemTracker()
        tracker.track_external(model, optimizer, *inputs.values())
        with tracker:
            for _ in range(2):  # the optimizer's state is made in the first step
                loss = model(**inputs)["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                peaks = tracker.get_tracker_snapshot("peak")
                tracker.reset_mod_stats()
    return sum(snapshot["Total"] for snapshot in peaks.values())


def estimate_memory(job: Job, batch_size: int) -> int:
    """What `accelerate estimate-memory` prints of training with Adam: it knows weights alone. The
    command itself takes models of the Hub; these are the functions that it calls."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils.modeling import calculate_maximum_sizes

    return max(estimate_training_usage(calculate_maximum_sizes(job.model())[0], "float32").values())


def torch_preflight(job: Job, batch_size: int) -> int:
    """Its guard, with a batch of the network's first input on the meta device."""
    from torch_preflight import VRAMGuard

    model = job.model()
    example = next(iter(next(iter(job.loader(2))).values()))
    example = example.float() if example.dtype == torch.uint8 else example
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with VRAMGuard(
        model.network, optimizer=optimizer, batch_size=batch_size, example_input=example
    ) as guard:
        if guard.activation_source == "unknown":
            raise ValueError("it cannot run the network on meta tensors: activations unknown")
        return guard.report.total - guard.report.breakdown.cuda_context


# What is imported before the clock starts: a search is timed, and not the loading of its package.
MODULES = {
    "lightning, power": "lightning.pytorch.tuner",
    "lightning, binsearch": "lightning.pytorch.tuner",
    "accelerate": "accelerate.utils",
    "transformers": "transformers.trainer",
    "toma": "toma",
    "composer": "composer",
    "ultralytics": "ultralytics.utils.autobatch",
    "MemTracker": "torch.distributed._tools.mem_tracker",
    "estimate-memory": "accelerate.commands.estimate",
    "torch-preflight": "torch_preflight",
}
Finder = Callable[[Job, int | None], int | None]
FINDERS: dict[str, Finder] = {
    "lightning, power": partial(lightning, "power"),
    "lightning, binsearch": partial(lightning, "binsearch"),
    "accelerate": accelerate,
    "transformers": transformers,
    "toma": toma,
    "composer": composer,
    "ultralytics": ultralytics,
}
PREDICTORS: dict[str, Callable[[Job, int], int]] = {
    "MemTracker": mem_tracker,
    "estimate-memory": estimate_memory,
    "torch-preflight": torch_preflight,
}
