"""Many heads trained at once: one stacked model whose every layer is one batched product.

The head is small, so a card or a CPU does nothing but wait for it. Thirty of them (ten seeds on
three data sets) make products that are worth starting. Each member has its own rows, order,
dropout, clipping and early stop, and its numbers do not depend on who else is in the ensemble: they
are those of `recipe.train_head` to rounding.

Members of one ensemble have as many training pairs as each other, so that their epochs and learning
rates go together.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from brimful.errors import UsageError
from brimful_train.config import Config
from brimful_train.data.epoch_sampler import EpochSampler
from brimful_train.optim.optimizers import set_lr
from brimful_train.optim.schedules import Schedule
from brimful_train.reporting.peak_memory import EVAL, TRAIN, Peaks
from recipes.ood_dpo.head import energies, make_head
from recipes.ood_dpo.loss import head_loss
from recipes.ood_dpo.metrics import metrics
from recipes.ood_dpo.pairs import SPLIT_OF, PairData
from recipes.ood_dpo.settings import HeadOptions

# Settings of the engine that would change a training, or what is asked of it, and that an ensemble
# has not.
_AT_THEIR_DEFAULTS = (
    "batch.eval_batch",
    "batch.max_tokens",
    "batch.drop_last",
    "scaling.rule",
    "scaling.reference_batch",
    "data.workers",
    "backend",
    "parallel",
    "overlap",
    "gradient_checkpointing",
    "compile",
    "cuda_graphs",
    "channels_last",
    "on_nan",
    "memory_budget",
    "eval_every_epochs",
    "tensorboard",
)
_ALLOWED = {
    "optimizer.name": ("adamw",),
    "precision": ("fp32", "bf16"),
    "batch.accumulation": (None, 1),
}
_STATE = ("alive", "epoch", "updates", "samples", "buffers")  # what a killed training goes on from


def check_settings(config: Config) -> None:
    """Raises UsageError for settings that an ensemble would not train by."""
    usual = Config(out=config.out)
    allowed = {name: (attrgetter(name)(usual),) for name in _AT_THEIR_DEFAULTS} | _ALLOWED
    allowed["batch.effective"] = (None, config.batch.micro_batch)
    refused = {
        name: attrgetter(name)(config)
        for name, values in allowed.items()
        if attrgetter(name)(config) not in values
    }
    if refused:
        raise UsageError(
            "An ensemble does not train by "
            f"{', '.join(f'config.{name} = {value!r}' for name, value in refused.items())}.",
            "It has adamw, fp32 or bf16, one batch an update, an evaluation each epoch, any "
            "schedule, clipping and patience.",
            "Leave that out, or choose --engine ray in a sweep.",
        )


@dataclass
class Trained:
    """What became of a member. `curve`: (samples seen, validation AUROC, mean loss since the last)
    at each evaluation.
    """

    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    best_auroc: float = -math.inf
    best_samples: int = 0
    updates: int = 0
    seconds: float = 0.0  # its share of the time of all
    error: str = ""

    @property
    def samples(self) -> int:
        return self.curve[-1][0] if self.curve else 0


class Ensemble:
    """Trains a head for each of `members` until each has stopped. `state`: a file from which a
    killed training goes on, bit for bit. `peaks`: where its phases are measured; there is one
    memory for all members.
    """

    def __init__(
        self,
        members: Sequence[PairData],
        options: HeadOptions,
        config: Config,
        device: torch.device,
        state: Path | None = None,
        peaks: Peaks | None = None,
    ) -> None:
        check_settings(config)
        self.members, self.options, self.config = members, options, config
        self.device, self.state, self.peaks = device, state, peaks
        self.pairs = members[0].pairs
        if any(member.pairs != self.pairs for member in members):
            raise ValueError("members of one ensemble have as many training pairs as each other")
        self.batch = min(config.batch.micro_batch, self.pairs)
        self.loss = head_loss(options)
        self.total = config.epochs * self.pairs
        if config.max_steps is not None:  # the learning rate comes to its end there as well
            self.total = min(self.total, config.max_steps * self.batch)
        self.schedule = Schedule(config.schedule, config.optimizer.lr, self.total, self.pairs)
        self.results = [Trained() for _ in members]
        self.alive = list(range(len(members)))
        self.epoch, self.updates, self.samples = 0, 0, 0  # of each living member
        self.samplers = [
            EpochSampler(self.pairs, seed=m.seed, micro_batch=self.batch, accumulation=1)
            for m in members
        ]
        self.validation = [
            [member.features(part) for part in ("validation_id", "validation_ood")]
            for member in members
        ]
        self.rows, self.places = _pool(members, device)
        # takes the weights of a member that is evaluated
        self.judge = make_head(options, 0).to(device)
        self.template = make_head(options, 0).to("meta")
        heads = [make_head(options, member.seed).to(device) for member in members]
        stacked, self.buffers = torch.func.stack_module_state(heads)
        self.parameters = {name: nn.Parameter(value.detach()) for name, value in stacked.items()}
        # biases do not decay, as in brimful_train
        self.optimizer = torch.optim.AdamW(
            [
                {
                    "params": [value for value in self.parameters.values() if value.dim() == dim],
                    "weight_decay": decay,
                }
                for dim, decay in ((3, config.optimizer.weight_decay), (2, 0.0))
            ],
            lr=config.optimizer.lr,
            betas=(config.optimizer.beta1, config.optimizer.beta2),
            eps=config.optimizer.eps,
            fused=device.type in ("cpu", "cuda"),
        )

    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        """(members, n, width) → (members, n): `vmap` turns each layer into one batched product."""
        head: Any = functools.partial(torch.func.functional_call, self.template)
        return torch.func.vmap(head)((self.parameters, self.buffers), (x,))

    def train(
        self,
        stopped: Callable[[int, Trained], None] | None = None,
        state_every_s: float = 20.0,
        evaluated: Callable[[], None] = lambda: None,
    ) -> list[Trained]:
        """Calls `stopped` for each member as soon as it has stopped, with its best weights, and
        `evaluated` after each epoch.
        """
        saved = time.perf_counter()
        stopped = stopped or (lambda index, result: None)
        if self.state is not None and self.state.exists():
            self._load(self.state)
        for index, result in enumerate(self.results):
            if index not in self.alive:  # stopped before the kill, perhaps not yet written down
                stopped(index, result)
        while self.alive:
            begun = time.perf_counter()
            with self._phase(TRAIN):
                losses = self._train_epoch()
            with self._phase(EVAL):
                ended = self._evaluate(losses)
            now = time.perf_counter()
            for index in self.alive:
                self.results[index].seconds += (now - begun) / len(self.alive)
            for index in ended:
                stopped(index, self.results[index])
            self._keep([index for index in self.alive if index not in ended])
            evaluated()
            if self.state is not None and self.alive and now - saved > state_every_s:
                self._save(self.state)
                saved = now
        return self.results

    def _phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.peaks is None else self.peaks.phase(name)

    def left_s(self, index: int) -> float:
        """What a living member still takes at most, by its epochs so far."""
        return self.results[index].seconds * (self.total / self.samples - 1)

    def _train_epoch(self) -> torch.Tensor:
        """Mean loss of each living member over the epoch."""
        orders = np.stack([self.samplers[index].order(self.epoch) for index in self.alive])
        sums = torch.zeros(len(self.alive), device=self.device)
        samples = self.epoch * self.pairs
        for taken in torch.from_numpy(orders).to(self.device).split(self.batch, dim=1):
            if self._over(samples):
                break
            samples += taken.shape[1]
            sums += self._update(taken, samples) * taken.shape[1]
        self.epoch += 1
        return sums / self.pairs

    def _rows(self, taken: torch.Tensor, side: int) -> torch.Tensor:
        """Features (members, n, width) of the pairs' molecules in distribution (side 0) or out of
        it.
        """
        places = self.places[side, self.alive].gather(1, taken)
        return self.rows.index_select(0, places.flatten()).view(*taken.shape, -1)

    def _over(self, samples: int) -> bool:
        most = self.config.max_steps
        return samples >= self.total or (most is not None and self.updates >= most)

    def _update(self, taken: torch.Tensor, samples: int) -> torch.Tensor:
        """One update of each member on its rows `taken` (members, n); `samples`: seen at its end.
        Losses (members,).
        """
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"
        ):
            energies = [
                self._forward(self._rows(taken, side)) for side in (0, 1)
            ]  # in distribution first, as in `recipe`
        losses = self.loss(*energies)
        losses.sum().backward()
        if self.config.clip_norm:
            clip_each(self.parameters.values(), self.config.clip_norm)
        set_lr(self.optimizer, self.schedule.lr(samples))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.updates, self.samples = self.updates + 1, samples
        return losses.detach()

    @torch.no_grad()
    def _evaluate(self, losses: torch.Tensor) -> list[int]:
        """Measures each living member; the indices of those that are done."""
        ended, done = [], self._over(self.epoch * self.pairs)
        for place, (index, loss) in enumerate(zip(self.alive, losses.tolist(), strict=True)):
            result = self.results[index]
            result.updates = self.updates
            if not math.isfinite(loss):
                result.error = f"The loss became {loss} within the first {self.samples:,} samples."
                ended.append(index)
                continue
            low, high = (self.energies_of(index, rows) for rows in self.validation[index])
            area = metrics(low, high)["auroc"]
            result.curve.append((self.samples, area, loss))
            if area > result.best_auroc:
                result.best_auroc, result.best_samples = area, self.samples
                weights = self._weights_of(place)
                result.weights = {name: value.cpu().clone() for name, value in weights.items()}
            patience = self.config.patience_samples or math.inf
            if done or self.samples - result.best_samples >= patience:
                ended.append(index)
        return ended

    def _weights_of(self, place: int) -> dict[str, torch.Tensor]:
        """Views of one member's."""
        return {
            name: value.detach()[place] for name, value in (self.parameters | self.buffers).items()
        }

    def energies_of(self, index: int, rows: np.ndarray) -> np.ndarray:
        """By a living member as it is now."""
        self.judge.load_state_dict(self._weights_of(self.alive.index(index)))
        return energies(self.judge, rows, self.device)

    def _keep(self, alive: list[int]) -> None:
        """Members that stopped leave the products."""
        if len(alive) == len(self.alive):
            return
        places = torch.tensor(
            [self.alive.index(index) for index in alive], dtype=torch.int64, device=self.device
        )
        self.buffers = {name: buffer[places] for name, buffer in self.buffers.items()}
        for parameter in self.parameters.values():
            parameter.data = parameter.data[places]
            state = self.optimizer.state[parameter]
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name][places]
        self.alive = alive

    def _save(self, path: Path) -> None:
        """The file is whole or not there."""
        content = {name: getattr(self, name) for name in _STATE}
        content["results"] = [vars(result) for result in self.results]
        content["parameters"] = {name: value.data for name, value in self.parameters.items()}
        content["optimizer"] = self.optimizer.state_dict()
        partial = path.with_name(f"{path.name}.partial")
        torch.save(content, partial)
        partial.replace(path)

    def _load(self, path: Path) -> None:
        content = torch.load(path, map_location=self.device, weights_only=True)
        for name in _STATE:
            setattr(self, name, content[name])
        self.results = [Trained(**result) for result in content["results"]]
        for name, value in content["parameters"].items():
            self.parameters[name].data = value
        self.optimizer.load_state_dict(content["optimizer"])


def clip_each(parameters: Iterable[torch.Tensor], most: float) -> None:
    """`torch.nn.utils.clip_grad_norm_` for each member by itself: its gradients are the first
    dimension's.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norms = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in gradients]).norm(dim=0)
    factors = (most / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factors.view(-1, *[1] * (gradient.dim() - 1)))


def _pool(members: Sequence[PairData], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """All features to train on, of members that share arrays once; and where among them the
    molecules of each pair are, in and out of distribution: int64 (2, members, pairs).
    """
    starts: dict[int, int] = {}
    arrays: list[np.ndarray] = []
    for array in (member.arrays[name] for member in members for name in ("train", "ood_val")):
        if id(array) not in starts:
            starts[id(array)] = sum(map(len, arrays))
            arrays.append(array)
    places = np.array(
        [
            [starts[id(member.arrays[SPLIT_OF[part]])] + member.rows[part] for member in members]
            for part in ("train_id", "train_ood")
        ]
    )
    pool = torch.from_numpy(np.concatenate(arrays)).to(device)
    return pool, torch.from_numpy(places).to(device)
