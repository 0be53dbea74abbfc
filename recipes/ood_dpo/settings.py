"""The recipe's flags beside the engine's, and three presets of all of them. No torch here, so that
--help is quick.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter, validators

from recipes.common.running import Preset

OUT = "out/ood_dpo"
Positive = Annotated[float, Parameter(validator=validators.Number(gt=0))]
NotNegative = Annotated[float, Parameter(validator=validators.Number(gte=0))]

AtLeastOne = Annotated[int | None, Parameter(validator=validators.Number(gte=1))]
Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")]
Sizes = Annotated[tuple[Count, ...], Parameter(consume_multiple=True, negative="")]


@Parameter(name="*", group=Group("Data", sort_key=0))
@dataclass(frozen=True)
class DatasetOptions:
    """Molecules in five splits: train, iid_val, iid_test, ood_val, ood_test."""

    dataset: str = ""
    """DrugOOD's .json, a .csv, moleculeace:CHEMBL204_Ki (one of 30 targets) or moleculeace:all."""
    domain: Literal["assay", "scaffold", "size"] | None = None
    """What a shift is made of. Without it the domains of the file, and Bemis-Murcko scaffolds where
    it has none.
    """
    smiles_column: str | None = None
    """Of a CSV; without it smiles, SMILES or mol."""
    label_column: str | None = None
    """Of a CSV; without it cls_label, label, HIV_active, activity or y. none: the molecules have no
    labels.
    """
    domain_column: str | None = None
    """Of a CSV: the assay or target of a molecule; without it domain_id, assay_id or target where
    it has one.
    """
    split_column: str | None = None
    """Of a CSV that names a split in each row; without it the splits are made here, by domain."""
    subsample: AtLeastOne = None
    """Molecules of each split at most, drawn by --split-seed."""
    split_seed: int = 0
    """Of what is drawn: the parts of the in-distribution molecules, and the subsample."""
    shared: Literal["error", "leave-out"] = "error"
    """A molecule in two splits is an error; leave-out keeps it in the one that is measured (test,
    then validation) alone.
    """


@Parameter(name="*", group=Group("Encoder", sort_key=1))
@dataclass(frozen=True)
class EncoderOptions:
    """What turns a molecule into 512 numbers, once."""

    encoder: Literal["chemnet", "minimol", "unimol", "morgan"] = "chemnet"
    """An LSTM over SMILES, two graph networks, or plain fingerprints."""
    weights: Path | None = None
    """Of the encoder, where it brings none (unimol)."""
    encode_workers: AtLeastOne = None
    """Processes that prepare molecules; without it one a core."""
    encode_budget: Positive | None = None
    """What a batch may cost, in the encoder's own measure (atoms squared, tokens); without it the
    encoder's own.
    """
    cache: Path | None = None
    """Where features are kept; without it ~/.cache/brimful/ood_dpo."""
    recompute_features: bool = False
    """Encode again what is in the cache."""


@Parameter(name="*", group=Group("Head", sort_key=2))
@dataclass(frozen=True)
class HeadOptions:
    """The energy head and its loss. The defaults are those of the paper's authors."""

    loss: Literal["dpo", "bce", "mse", "hinge"] = "dpo"
    """dpo and hinge compare all pairs of a batch; bce and mse judge each molecule by itself."""
    beta: Positive = 0.1
    """dpo: how steeply a pair counts that is ranked wrong."""
    lambda_reg: NotNegative = 0.01
    """Weight of the mean squared energies, of all losses."""
    margin: Positive = 1.0
    """hinge: how far apart a pair must be to count no more."""
    hidden: Annotated[int, Parameter(validator=validators.Number(gte=2))] = 256
    """Units of the first layer; the second has half of them."""
    dropout: Annotated[float, Parameter(validator=validators.Number(gte=0, lt=1))] = 0.1
    """After each hidden layer."""


@Parameter(name="*", group=Group("Sweep", sort_key=0))
@dataclass(frozen=True)
class SweepOptions:
    """Every data set × encoder × method × seed is one experiment. Of several heads, `methods` is
    the loss, and not --loss.
    """

    datasets: Names = ()
    """As --dataset takes them; without it that one."""
    domains: Names = ()
    """Each data set once with each of these (assay, scaffold, size); without it --domain."""
    encoders: Names = ()
    """Without it --encoder."""
    methods: Names = ("dpo",)
    """dpo, bce, mse, hinge: a head trained with this loss; or a baseline: msp, odin, energy,
    mahalanobis, knn, lof, mc_dropout, conformal; all: each of them. trivial (heavy atoms and rings
    alone) always stands beside them."""
    seeds: Count = 10
    """So many: 0, 1, 2 ..."""
    cross: Annotated[bool, Parameter(negative="")] = False
    """Test what was trained on each data set on every other one too."""
    engine: Literal["ensemble", "ray"] = "ensemble"
    """ensemble: all seeds and data sets in one batched model; ray: tasks of a Ray cluster, or of
    this machine, packed onto cards and cores by their predicted memory."""
    ray_address: str | None = None
    """Of a running cluster, RAY_ADDRESS as a rule; without one Ray is started on this machine."""
    threads: Count = 1
    """Cores of a task of Ray."""
    state_every_s: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 20.0
    """Seconds after which an ensemble writes its state; a kill costs as much."""
    status: Annotated[bool, Parameter(negative="")] = False
    """Show what is done and what is left, and end."""
    only: Annotated[Names, Parameter(show=False)] = ()
    """These experiments alone, by name: what a task of Ray does, for a prediction of its memory."""


@Parameter(name="*", group=Group("Study", sort_key=0))
@dataclass(frozen=True)
class StudyOptions:
    """Each batch size is trained twice: until all have seen as many samples, and until all have
    made as many updates.
    """

    sizes: Sizes = (64, 256, 512, 1024, 2048, 4096, 8192)
    """Batch sizes, in pairs."""
    seeds: Count = 3
    """So many: 0, 1, 2 ..."""
    samples: Count = 40_000
    """Pairs seen by each, in the first of the two."""
    updates: Count = 100
    """Updates of each, in the second."""
    noise_updates: Count = 50
    """Updates along which the gradient noise scale is averaged."""


# The authors' defaults (github.com/langzhouhe/OOD-DPO, as bench/ood_authors.py runs them): AdamW
# with a weight decay of 1e-5, gradients clipped at 1, fp32.
_ALIKE = {
    "out": OUT,
    "optimizer": "adamw",
    "weight-decay": 1e-5,
    "clip-norm": 1.0,
    "precision": "fp32",
    # the best evaluation and the end have a checkpoint
    "checkpoint-every-epochs": "none",
    "random-samples": False,
}

# Theirs too: batch 512, 50 epochs, 1e-4, × 0.9 each 10 epochs, patience of 10 epochs.
ORIGINAL = Preset(
    "original",
    "What the authors' code has by default (github.com/langzhouhe/OOD-DPO).",
    {
        **_ALIKE,
        "batch-size": 512,
        "epochs": 50,
        "lr": 1e-4,
        "schedule": "step",
        "decay-factor": 0.9,
        "decay-every-epochs": 10,
        "patience-samples": 20_000,
    },
    {"patience-samples": "10 epochs of their 2,000 pairs", "precision": "theirs has no other"},
)

AGGRESSIVE = replace(
    ORIGINAL,
    name="aggressive",
    why="The batch size that the authors raised it to, to fill a card of 80 GB; all else as in "
    "original.",
    flags={**ORIGINAL.flags, "batch-size": 8192},
)

# Batch, learning rate, schedule and epochs were chosen on three targets that bench/ood_sweep.py
# does not race, for the AUROC of a fifth of the samples; the rest is the authors'.
FAST = replace(
    ORIGINAL,
    name="fast",
    why="Many small updates: of a fifth of the samples, a higher AUROC than original's on 3 "
    "targets and 2 encoders (measured).",
    flags={
        **_ALIKE,
        "batch-size": 128,
        "epochs": 10,
        "lr": 2e-3,
        "schedule": "cosine",
        "patience-samples": 20_000,
    },
    assumed={},
)
