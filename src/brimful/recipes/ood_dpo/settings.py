"""The recipe's flags beside the engine's. No torch here, so that --help is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Group, Parameter, validators

OUT = "out/ood_dpo"
Positive = Annotated[float, Parameter(validator=validators.Number(gt=0))]
NotNegative = Annotated[float, Parameter(validator=validators.Number(gte=0))]


@Parameter(name="*", group=Group("Head", sort_key=0))
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
