"""Which of all the laws that some traces give are to be trusted most, and how far."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from brimful.decide.memory.program import Program
from brimful.decide.memory.size_model import SizeModel, fit_size_model

__all__ = ["TrustedLaws", "best_laws"]


@dataclass(frozen=True)
class TrustedLaws:
    """Laws, and how far they can be trusted."""

    laws: SizeModel
    reproduced: tuple[int, ...]  # traced sizes that they give to the byte

    @property
    def verified(self) -> bool:
        return self.laws.exact and len(self.reproduced) > len(self.laws.fitted_at)


def best_laws(programs: dict[int, Program], frontier: list[int]) -> TrustedLaws | None:
    """The laws, of all that two or three traces give, that are to be trusted most near the frontier.

    First those that give the traces at the frontier to the byte, then those without rounding that give the most traces,
    then the plainest. None where no two traces have the same events.
    """
    best: tuple[tuple[int, int, int, int], TrustedLaws] | None = None
    for count in (2, 3):
        for sizes in combinations(sorted(programs), count):
            laws = fit_size_model({size: programs[size] for size in sizes})
            if laws is None or (count == 3 and not laws.exact):
                continue  # any three points have a parabola; it says something only if its numbers are whole
            reproduced = tuple(size for size in programs if size in sizes or laws.reproduces(programs[size], size).exact)
            near = sum(size in reproduced for size in frontier)
            distance = sum(abs(size - frontier[-1]) for size in sizes)
            rank = (near, len(reproduced) if laws.exact else 0, -count, -distance)
            if best is None or rank > best[0]:
                best = (rank, TrustedLaws(laws, reproduced))
        if best is not None and len(best[1].reproduced) == len(programs) and best[1].laws.exact:
            break
    return best[1] if best is not None else None
