import pytest

from bench import turns as bench
from bench.turns import Turns, paired_ratios


class Clock:
    """A machine on which an update takes as long as it should; processor time is half of it."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(bench.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(bench.time, "process_time", lambda: self.now / 2)

    def takes(self, seconds):
        self.now += seconds


@pytest.mark.parametrize("accumulation", [1, 4])
def test_blocks_of_one_stand_between_blocks_of_the_other(monkeypatch, accumulation):
    clock, order = Clock(monkeypatch), []

    def second():
        order.append("second")
        clock.takes(1.0)

    turns = Turns(second, steps=3, calls_per_step=accumulation, warm_up=1)
    for _ in range(3 * 4 + 1):  # warm-up, three rounds, and the call that ends the last
        for _ in range(accumulation):
            turns()
            clock.takes(2.0 / accumulation)
        order.append("first")
    assert order == ["second"] * 3 + (["first"] * 3 + ["second"] * 3) * 4 + ["first"]
    assert turns.second_times["wall_s"] == pytest.approx([3.0] * 4) and turns.first_times[
        "wall_s"
    ] == pytest.approx([6.0] * 3)
    assert turns.first_times["cpu_s"] == pytest.approx([3.0] * 3)
    assert paired_ratios(
        turns.first_times["wall_s"], turns.second_times["wall_s"]
    ) == pytest.approx([2.0] * 3)
