"""The best evaluation so far, and how long ago it was: for checkpoints that stay, and for a
training that ends early.
"""

import math
from collections.abc import Mapping
from typing import Any

from brimful.units import counted


class Best:
    """`name` is the measure that evaluations are compared by, and `direction` whether its "min" or
    its "max" is best.

    `found` holds the measures, the step and the samples of the best one; None before the first that
    is a number.
    """

    def __init__(self, name: str, direction: str):
        self.name, self._sign = name, 1 if direction == "min" else -1
        self.found: dict[str, Any] | None = None
        self.evaluated_samples = 0  # when the latest evaluation was

    def note(self, measures: Mapping[str, float], step: int, samples: int) -> float | None:
        """The score of an evaluation; None where it is NaN or missing: nothing would ever be better
        than that.
        """
        self.evaluated_samples = samples
        score = measures.get(self.name)
        if score is None or math.isnan(score):
            return None
        best = None if self.found is None else self.found["measures"][self.name]
        if best is None or self._sign * score < self._sign * best:
            self.found = {"measures": dict(measures), "step": step, "samples": samples}
        return score

    def is_of(self, step: int) -> bool:
        return self.found is not None and self.found["step"] == step

    def lost_patience(self, patience_samples: int | None) -> bool:
        """Whether the latest evaluation was so many samples after the best one (or after the start,
        without any).
        """
        since = self.evaluated_samples - (self.found["samples"] if self.found is not None else 0)
        return patience_samples is not None and since >= patience_samples

    def ending(self, patience_samples: int) -> str:
        """Why the training ends early, in a sentence."""
        if self.found is None:
            return (
                f"Ended early: no evaluation in {counted(self.evaluated_samples, 'sample')} gave "
                f"a {self.name}."
            )
        score, samples = self.found["measures"][self.name], self.found["samples"]
        return (
            f"Ended early: no evaluation was better than the one at {counted(samples, 'sample')} "
            f"({self.name} {score:.4g}) within {patience_samples:,} more. Raise patience_samples "
            "to go on."
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self.found, "evaluated_samples": self.evaluated_samples}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.found, self.evaluated_samples = state["best"], state["evaluated_samples"]
