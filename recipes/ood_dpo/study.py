"""`study batch-size`: what the batch size does to this head, at equal samples seen and at equal
updates, over several seeds.

Beside AUROC, time and memory it measures the gradient noise scale: the batch size around which
larger batches stop to pay. A batch far above it spends samples without need; one that is larger
than the data is the same batch as the data.

The noise scale is by the two batches' norms (`brimful_train.step.noise_scale`), both parts averaged
over updates before they are divided. It is exact for a loss that is a mean over samples; the loss
over all pairs of a batch is so up to terms of 1/batch.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pandas import DataFrame

from brimful.units import counted
from brimful_train.config import Config
from brimful_train.reporting.peak_memory import Peaks
from brimful_train.step.noise_scale import estimates
from recipes.common.cache import lock, write_json, write_whole
from recipes.common.description import require_same
from recipes.common.running import say
from recipes.ood_dpo import page
from recipes.ood_dpo.ensemble import Ensemble, Trained, check_settings
from recipes.ood_dpo.experiments import Frame
from recipes.ood_dpo.metrics import metrics
from recipes.ood_dpo.pairs import PairData
from recipes.ood_dpo.runs import Bench, Settings, set_up_host
from recipes.ood_dpo.settings import HeadOptions, StudyOptions

FILE_NAME = "study.json"
PARTS = 4  # a large batch is so many small ones, for the noise scale


class Measured(Ensemble):
    """An ensemble that also sums the squared norms of gradients of small and large batches, for
    each member.
    """

    def __init__(
        self,
        members: Sequence[PairData],
        options: HeadOptions,
        config: Config,
        device: torch.device,
    ) -> None:
        super().__init__(members, options, config, device)
        self.squares = torch.zeros(3, len(members), dtype=torch.float64)  # |G|², S, updates

    def _update(self, taken: torch.Tensor, samples: int) -> torch.Tensor:
        if taken.shape[1] >= 2 * PARTS:
            small = taken.shape[1] // PARTS
            large_square, small_square = self._square(taken), self._square(taken[:, :small])
            of_noise, of_signal = estimates(small, small_square, taken.shape[1], large_square)
            self.squares[:, self.alive] += torch.stack(
                [of_signal, of_noise, torch.ones_like(of_noise)]
            )
        return super()._update(taken, samples)

    def _square(self, taken: torch.Tensor) -> torch.Tensor:
        """|G|² of each living member, float64 on the host, without dropout: it is the gradients'
        noise that is asked for.
        """
        self.template.eval()
        losses = self.loss(*(self._forward(self._rows(taken, side)) for side in (0, 1)))
        gradients = torch.autograd.grad(losses.sum(), list(self.parameters.values()))
        self.template.train()
        return (
            torch.stack([gradient.flatten(1).double().square().sum(1) for gradient in gradients])
            .sum(0)
            .cpu()
        )

    def noise_scale(self, index: int) -> float | None:
        """None where no batch was large enough, or chance made the signal's estimate negative."""
        of_signal, of_noise, updates = self.squares[:, index].tolist()
        return of_noise / of_signal if updates and of_signal > 0 and of_noise > 0 else None


def study_batch_size(settings: Settings, options: StudyOptions, words: Sequence[str]) -> int:
    """Trains all seeds at each size, writes batch_size.json and the page into --out. A size that
    has its file of points is done: the same command goes on with the others."""
    check_settings(settings.config)
    with lock(settings.out / "study", "studying into", say):
        return _study(settings, options, words)


def _study(settings: Settings, options: StudyOptions, words: Sequence[str]) -> int:
    set_up_host(settings)
    bench = Bench(settings)
    name, encoder = bench.datasets[0], bench.encoders[0]
    loaded = bench.load(name, encoder)
    members = [loaded.pairs(seed) for seed in range(options.seeds)]
    pairs = members[0].pairs
    same = settings.learning() | {"dataset": asdict(settings.dataset), "encoder": encoder}
    same["options"] = {**asdict(options), "sizes": None}
    require_same(settings.out, FILE_NAME, same, "study")
    trivial = fmean(loaded.trivial(seed)["auroc"] for seed in range(options.seeds))
    points: list[dict[str, Any]] = []
    for equal in ("samples", "updates"):
        for size in options.sizes:
            file = settings.out / "points" / f"{equal}-{size}.json"
            if not file.is_file():
                write_json(file, at_size(equal, size, members, settings, options, file))
                file.with_suffix(".pt").unlink(missing_ok=True)
            points += json.loads(file.read_text(encoding="utf-8"))
            say(_line(DataFrame(points[-options.seeds :]), pairs, trivial))
    description: dict[str, Any] = {"dataset": name, "encoder": encoder, "pairs": pairs}
    description |= {"device": str(settings.device), "trivial_auroc": trivial}
    write_json(settings.out / "batch_size.json", {**description, "points": points})
    file = settings.out / "batch_size.html"
    write_whole(file, page.study_page(DataFrame(points), words, **description))
    say(f"The page: {file}")
    return 0


def at_size(
    equal: str,
    size: int,
    members: Sequence[PairData],
    settings: Settings,
    options: StudyOptions,
    file: Path,
) -> list[dict[str, Any]]:
    """All seeds at once. Each trains to the end, without an early stop; what is measured is its
    last state. `file`: beside it is the state from which a training that was killed goes on.

    A row for each seed. equal: what it has in common with the other sizes, samples or updates.
    updates and samples: what it trained on. peak_bytes: of all seeds together. noise_scale: in
    pairs; None where no batch was large enough.
    """
    pairs = members[0].pairs
    batch = min(size, pairs)
    an_epoch = math.ceil(pairs / batch)
    epochs = (
        options.samples / pairs if equal == "samples" else math.ceil(options.updates / an_epoch)
    )
    config = replace(
        settings.config,
        batch=replace(settings.config.batch, micro_batch=batch),
        epochs=epochs,
        max_steps=None if equal == "samples" else options.updates,
        patience_samples=None,
    )
    areas: dict[int, float] = {}

    def stopped(index: int, result: Trained) -> None:
        tests = (
            timed.energies_of(index, members[index].arrays[split])
            for split in ("iid_test", "ood_test")
        )
        areas[index] = math.nan if result.error else metrics(*tests)["auroc"]

    peaks = Peaks(settings.device)
    with peaks.phase("study"):
        before = peaks.now_bytes()
        file.parent.mkdir(parents=True, exist_ok=True)
        state = file.with_suffix(".pt")
        timed = Ensemble(members, settings.head, config, settings.device, state)
        trained = timed.train(stopped, settings.sweep.state_every_s)
    peak = peaks.read("study")
    top = peak.allocated_bytes if peak.allocated_bytes is not None else peak.host_bytes
    measured = Measured(
        members,
        settings.head,
        replace(config, max_steps=min(options.noise_updates, timed.updates)),
        settings.device,
    )
    measured.train()
    return [
        {
            "equal": equal,
            "batch_size": size,
            "batch_in_force": batch,
            "seed": member.seed,
            "auroc": areas[index],
            "validation_auroc": result.curve[-1][1] if result.curve else math.nan,
            "updates": result.updates,
            "samples": result.samples,
            "seconds": result.seconds,
            "peak_bytes": None if top is None else max(0, top - before),
            "noise_scale": measured.noise_scale(index),
        }
        for index, (member, result) in enumerate(zip(members, trained, strict=True))
    ]


def _line(points: Frame, pairs: int, trivial: float) -> str:
    first, noise = points.iloc[0], points.noise_scale.dropna()
    same = f" (of {pairs:,} pairs: the batch is all of them)" if first.batch_size >= pairs else ""
    scale = f", noise scale {noise.median():,.0f}" if len(noise) else ""
    return (
        f"equal {first.equal}, batch {first.batch_size:,}{same}: AUROC {points.auroc.mean():.4f} "
        f"(heavy atoms and rings alone {trivial:.4f}) "
        f"after {counted(first.updates, 'update')} and {first.samples:,} samples, "
        f"{first.seconds:.2f} s a seed{scale}"
    )
