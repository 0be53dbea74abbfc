"""A `BatchSizeFinder` for Lightning whose answer was run: `BrimfulBatchSizeFinder`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import patch

import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder
from lightning.pytorch.loops import _EvaluationLoop, _FitLoop, _PredictionLoop
from lightning.pytorch.utilities.exceptions import MisconfigurationException, _TunerExitException
from lightning.pytorch.utilities.parsing import lightning_hasattr, lightning_setattr
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from brimful.decide.memory.bracket import run_search
from brimful.decide.memory.search_measured import Measured, search_largest_measured
from brimful.errors import DoesNotFit
from brimful.integrations.attempts import Memory, Ranks, measured, worst
from brimful.outcomes import OUT_OF_MEMORY
from brimful.units import format_bytes
from brimful.values import Limits

_finders = count()  # of this process; all ranks count alike


class BrimfulBatchSizeFinder(BatchSizeFinder):
    """The largest batch size that ran, training and evaluation, with its peak within the memory.

    In place of Lightning's, with its arguments; both modes search alike: from `init_val` up, by the
    peaks measured, to sizes whose predicted peak leaves the share `margin` of the memory free, at
    most `max_val`, in at most `max_trials` trials of `steps_per_trial` batches. Under DDP all ranks
    take the same size. Raises brimful.errors.DoesNotFit where not even one sample fits.
    """

    def __init__(
        self,
        mode: str = "power",
        steps_per_trial: int = 3,
        init_val: int = 2,
        max_trials: int = 25,
        batch_arg_name: str = "batch_size",
        margin: float = 0.05,
        max_val: int = 8192,
    ) -> None:
        if not 0 <= margin < 1:
            raise ValueError(f"margin is a share of the memory from 0 to below 1, not {margin}")
        super().__init__(mode, steps_per_trial, init_val, max_trials, batch_arg_name)
        # releases before 2.6 take neither
        self._margin, self._max_val = margin, max_val
        self._ranks = Ranks(f"brimful/finder/{next(_finders)}")

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str | None = None) -> None:
        if not lightning_hasattr(pl_module, self._batch_arg_name):
            raise MisconfigurationException(
                f"Neither the module, its hparams nor the datamodule has {self._batch_arg_name!r},"
                " which BrimfulBatchSizeFinder sets."
            )
        if stage == "fit" and not trainer.fit_loop._data_source.is_module():
            raise MisconfigurationException(
                "The loaders were given to fit(): BrimfulBatchSizeFinder cannot make them anew with"
                " another batch size. Make them in the LightningModule or in a LightningDataModule."
            )

    def scale_batch_size(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model: Any = trainer.strategy.model
        if trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            return
        if trainer.world_size > 1 and not isinstance(model, DistributedDataParallel):
            raise MisconfigurationException(
                "BrimfulBatchSizeFinder works on one device and under DDP. Where forward itself"
                " communicates, a rank that runs out of memory leaves the others waiting."
                " Ask `brimful predict`, which needs no card."
            )
        memory = Memory(trainer.strategy.root_device)
        trainer.strategy.barrier()  # NCCL takes its buffers, before what is left is read
        budget_bytes = int(min(self._ranks.gather(memory.begin())) * (1 - self._margin))
        limits = Limits(max_batch_size=self._max_val)
        search = search_largest_measured(
            budget_bytes, limits, memory.kind, self._max_trials, self._init_val
        )
        with _left_as_it_is(trainer) as restore:
            conclusion = run_search(search, lambda size: self._try(trainer, memory, size, restore))
            if conclusion.stop is not None:
                raise conclusion.stop
            if conclusion.largest is None:
                raise DoesNotFit(
                    "No batch size ran within the memory",
                    f"{format_bytes(budget_bytes)} of {memory.kind} memory may be taken.",
                    "Use a smaller model, shorter samples or gradient checkpointing.",
                )
            lightning_setattr(pl_module, self._batch_arg_name, conclusion.largest)
        memory.begin()  # training, too, begins without blocks of an earlier size
        self.optimal_batch_size = conclusion.largest
        peaks = {point.batch_size: point.value.value for point in conclusion.estimate.probes}
        untouched = f"nothing: no size up to {max(peaks):,} took more memory"
        rank_zero_info(
            f"Batch size {conclusion.largest:,} ran: peak {format_bytes(peaks[conclusion.largest])}"
            f" of {format_bytes(budget_bytes)} (measured); limited by"
            f" {conclusion.estimate.limited_by or untouched}."
        )
        if self._early_exit:
            raise _TunerExitException()

    def _try(
        self, trainer: Trainer, memory: Memory, size: int, restore: Callable[[], None]
    ) -> Measured:
        """One trial of a size on all ranks, of training with evaluation or of evaluation alone."""
        lightning_setattr(trainer.lightning_module, self._batch_arg_name, size)
        with _loop_of_a_trial(trainer, self._steps_per_trial) as loop:
            shown = measured(loop.run, memory)
            ran = getattr(loop, "epoch_loop", loop).batch_progress.current.completed
            if not ran and shown.outcome not in OUT_OF_MEMORY:
                raise MisconfigurationException(
                    f"At batch size {size} the loader has no batch: begin with a smaller init_val."
                )
            with suppress(NotImplementedError):  # of streams nobody knows
                samples = loop._combined_loader._dataset_length()
                shown = replace(shown, dataset_length=-(-samples // trainer.world_size))
        trainer.lightning_module.zero_grad(set_to_none=True)
        restore()  # the optimizer's state lies elsewhere if it is there before the first step
        return worst(self._ranks.gather(shown))


@contextmanager
def _left_as_it_is(trainer: Trainer) -> Iterator[Callable[[], None]]:
    """Weights, optimizers, schedulers, the loss scale and random states are afterwards as before;
    the loaders are made anew, with the batch size that is set by then. Gives what makes all but
    random states and loaders as before."""
    active: Any = trainer._active_loop
    has_begun = active._combined_loader is not None
    parts: list[Any] = [trainer.lightning_module, *trainer.optimizers, trainer.precision_plugin]
    parts += [config.scheduler for config in trainer.lr_scheduler_configs]
    kept = tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.detach().to("cpu", copy=True),
        [part.state_dict() for part in parts],
    )

    def restore() -> None:
        for part, state in zip(parts, kept, strict=True):
            part.load_state_dict(deepcopy(state))  # on a CPU optimizers take tensors themselves

    try:
        with isolate_rng(), patch.multiple(trainer, callbacks=[], _loggers=[]):
            yield restore
    finally:
        restore()
        # loaders of a training that has not begun take from the random states now, and not again
        with isolate_rng() if has_begun else nullcontext():
            for loop in _with_validation(active):
                loop._combined_loader = None
                loop.setup_data()
            if len(_with_validation(active)) == 1:
                active.reset()
        for loader in active._combined_loader.flattened:
            _set_sampler_epoch(loader, trainer.current_epoch)


@contextmanager
def _loop_of_a_trial(trainer: Trainer, batches: int) -> Iterator[Any]:
    """A loop of so many batches in place of the trainer's active, whose progress stays as it is: in
    mid-training that one would be done before its first batch. It trains for a short epoch, as if
    it were the one that the training is in, with an evaluation after it; or it evaluates. Ranks do
    not wait for each other in it: one may run out of memory where others do not.
    """
    active: Any = trainer._active_loop
    trial: Any = _PredictionLoop(trainer)
    if isinstance(active, _EvaluationLoop):
        trial = _EvaluationLoop(
            trainer, active._trainer_fn, active._stage, False, active.inference_mode
        )
    elif isinstance(active, _FitLoop):
        trial = _FitLoop(trainer, max_epochs=trainer.current_epoch + 1)
        trial.load_state_dict(deepcopy(active.state_dict()))
        trial.epoch_loop.val_loop._data_source = active.epoch_loop.val_loop._data_source
        trial.epoch_loop._broadcast_sigterm_tensor = lambda: None
    trial._data_source = active._data_source
    stages = [
        s for s in ("train", "val", "test", "predict") if getattr(trainer, f"limit_{s}_batches")
    ]
    changes: dict[str, Any] = {f"limit_{stage}_batches": batches for stage in stages}
    changes |= {"val_check_interval": 1.0, "check_val_every_n_epoch": 1}
    changes |= {f"{trainer.state.fn.value}_loop": trial}  # pyright: ignore[reportOptionalMemberAccess]
    alone = getattr(trainer.strategy, "block_backward_sync", nullcontext)
    no_waiting = {"reduce": lambda value, *_, **__: value, "barrier": lambda *_, **__: None}
    with patch.multiple(trainer, **changes):
        trial.restarting = False
        for loop in _with_validation(trial):
            loop.setup_data()
        with patch.multiple(trainer.strategy, **no_waiting), alone():
            yield trial
        trial.teardown()


def _with_validation(loop: Any) -> list[Any]:
    return [loop, loop.epoch_loop.val_loop] if isinstance(loop, _FitLoop) else [loop]
