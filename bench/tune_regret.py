"""How well `tune` chooses: the search itself against invented machines whose true speeds are known,
quiet and loaded.

    python -m bench.tune_regret [--seeds 200]

A machine has a speed for each batch size, a gain of the allocator's environment, and other
processes that come and go and take cores from it (each one for some half a minute), so that the
trials of one minute differ from those of the next. It says for
each kind of load: trials, machine time, by how much what is named is slower than the best (regret),
how often it is more than
3 % slower than the user's own settings (harm), and how often these were kept.
"""

import math
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench import harness
from brimful.decide.memory.bracket import run_search
from brimful.decide.tune.problem import Request, SpeedProblem
from brimful.decide.tune.search import Search
from brimful.values import Command, Device, Outcome, Trial, TrialKind, TrialResult

CORES = 2
STEPS, WARMUP_STEPS = 8, 2
START_S = 5.0  # of a process, until it trains
STAYS_S = 30.0  # how long one of the others works
LOADS = {"quiet": 0.0, "one other": 1.0, "three others": 3.0}  # how many others work, on average


@dataclass
class Machine:
    """`others`: how many other processes work on average; the clock goes on with each trial."""

    rate: Callable[[int], float]
    others: float
    random: random.Random
    now_s: float = 0.0
    _working: int = 0
    _until_s: float = 0.0
    trials: int = 0

    def run(self, request: Request) -> TrialResult:
        size = int(request.settings["batch_size"])
        self.trials += 1
        begun_s, shares = self.now_s, [self._pass(START_S)[1]]
        place = self.random.gauss(1.0, 0.015)  # where its memory lies
        quiet_s = size / self.rate(size)
        taken, shares_of = zip(
            *(self._pass(quiet_s * place * self._jitter()) for _ in range(WARMUP_STEPS + STEPS)),
            strict=True,
        )
        steps_s = taken[WARMUP_STEPS:]
        processor_s = (
            quiet_s * CORES * place * STEPS * self._contention(statistics.fmean(shares_of))
        )
        trial = Trial(
            Command(("train",)),
            dict(request.settings),
            Device("cpu", "cpu"),
            TrialKind.SPEED,
        )
        return TrialResult(
            trial=trial,
            outcome=Outcome.COMPLETED,
            samples_per_step=size,
            step_s=tuple(steps_s),
            samples_per_s=size * STEPS / sum(steps_s),
            duration_s=self.now_s - begun_s,
            folder="",
            samples_per_cpu_s=size * STEPS / processor_s,
            others_share=statistics.fmean([*shares, *shares_of]),
        )

    def _contention(self, share: float) -> float:
        """Caches that are shared cost processor time too."""
        return (1 + 0.1 * share) * max(0.5, self.random.gauss(1.0, 0.02 + 0.1 * share))

    def _jitter(self) -> float:
        return max(0.5, self.random.gauss(1.0, 0.03))

    def _pass(self, work_s: float) -> tuple[float, float]:
        """(seconds until that much work is done beside the others, their share of the cores
        meanwhile).
        """
        left_s, took_s, taken_s = work_s, 0.0, 0.0
        while left_s > 1e-9:
            if self.now_s >= self._until_s:
                self._working = _poisson(self.others, self.random)
                self._until_s = self.now_s + self.random.expovariate(1 / STAYS_S)
            share = self._working / (self._working + CORES)  # the scheduler is fair to threads
            step_s = min(left_s / (1 - share), self._until_s - self.now_s + 1e-9)
            left_s -= step_s * (1 - share)
            took_s, taken_s, self.now_s = (
                took_s + step_s,
                taken_s + share * step_s,
                self.now_s + step_s,
            )
        return took_s, taken_s / took_s if took_s else 0.0


def _poisson(mean: float, source: random.Random) -> int:
    count, left = 0, math.exp(-mean)
    product = source.random()
    while product > left:
        count, product = count + 1, product * source.random()
    return count


def curve(source: random.Random) -> Callable[[int], float]:
    """Speeds that saturate (an accelerator, or a host that dispatches), have a hump (caches), or
    are flat.
    """
    top, half, hump = (
        10 ** source.uniform(1.5, 3),
        2 ** source.uniform(0, 8),
        2 ** source.uniform(2, 9),
    )
    kind = source.choice(["saturates", "saturates", "hump", "flat"])
    if kind == "saturates":
        return lambda size: top * size / (size + half)
    if kind == "hump":
        return lambda size: top / (1 + 0.12 * abs(math.log2(size / hump)))
    return lambda size: top


@dataclass(frozen=True)
class Choice:
    trials: int
    minutes: float
    regret: float
    harmed: bool
    kept: bool


def choice(seed: int, others: float) -> Choice:
    source = random.Random(seed)
    rate = curve(source)
    largest, asked = 2 ** source.randint(6, 10), 2 ** source.randint(3, 7)
    machine = Machine(rate, others, random.Random(f"{seed}/{others}"))
    problem = SpeedProblem(largest, lambda result: True, requested=min(asked, largest))
    search = Search(problem)
    run_search(search.steps(), machine.run)
    result = search.result()
    assert result.chosen is not None
    size, requested = int(result.chosen["batch_size"]), min(asked, largest)
    named, users = rate(size), rate(requested)
    best = max(rate(2**power) for power in range(largest.bit_length()))
    return Choice(
        machine.trials,
        machine.now_s / 60,
        max(0.0, 1 - named / best),
        named < 0.97 * users,
        size == requested,
    )


def main(*, seeds: int = 200) -> None:
    heads = f"{'trials':>9}{'minutes':>9}{'regret, mean':>14}{'p90':>7}{'harm':>7}{'kept':>7}"
    print(f"{'load':>14}{heads}")
    for name, others in LOADS.items():
        runs = [choice(seed, others) for seed in range(seeds)]
        trials = statistics.fmean(run.trials for run in runs)
        minutes = statistics.median(run.minutes for run in runs)
        regrets = sorted(run.regret for run in runs)
        regret = f"{statistics.fmean(regrets):>14.1%}{regrets[int(0.9 * len(regrets))]:>7.1%}"
        harmed, kept = (
            statistics.fmean(getattr(run, flag) for run in runs) for flag in ("harmed", "kept")
        )
        print(f"{name:>14}{trials:>9.1f}{minutes:>9.1f}{regret}{harmed:>7.1%}{kept:>7.1%}")


if __name__ == "__main__":
    harness.run(main)
