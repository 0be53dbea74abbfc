import pytest
import torch

from bench import engine_cost as bench

PLAIN = bench.Case(10, 8, 32)


def blocks(ratio: float) -> dict:
    return {clock: {"ratios": [ratio] * 3, "by_hand": [0.01] * 4} for clock in bench.CLOCKS}


def test_the_limit_holds_for_steps_of_ten_milliseconds_by_both_clocks():
    within, over = (bench.summary("10 ms", [blocks(ratio)] * 2) for ratio in (1.019, 1.021))
    assert within["cpu_s"]["added_us"] == pytest.approx(190) and within["blocks"] == 6
    assert bench.holds([within]) and not bench.holds([within, over])
    over["case"]["step_ms"] = 2
    assert bench.holds([within, over])
    assert not bench.holds([{**within, "wall_s": {"ratio": {"median": 1.03}}}])
    within, over = (
        bench.summary("10 ms, noise scale of each step by halves", [blocks(ratio)])
        for ratio in (1.51, 1.53)
    )
    assert bench.holds([within]) and not bench.holds([over])


@pytest.mark.parametrize(
    "case",
    [
        PLAIN,
        bench.Case(10, 8, 8, accumulation=4, looks="auto"),
        bench.Case(10, 8, 32, norm=True),
        bench.Case(10, 8, 32, looks="split"),
    ],
)
def test_both_sides_make_the_same_updates(case, monkeypatch):
    """Over the same samples: with all of them in each update their order does not matter, but to
    the last bits.
    """
    monkeypatch.setattr(bench, "LR", 1e-2)
    x, y = bench.make_data(case, 32)
    ours, theirs = bench.make_model(case), bench.make_model(case)
    if case.norm:  # cut alike
        monkeypatch.setattr(torch, "randperm", lambda n, **options: torch.arange(n))
    calls = []
    bench.by_engine(ours, x, y, case, 5, lambda: calls.append(1))
    by_hand = bench.by_hand(theirs, x, y, case, 5)
    for _ in range(5):
        next(by_hand)
    assert len(calls) == 5 * case.passes
    # Compared by their outputs: biases before a normalization have no gradient but rounding, which
    # Adam makes steps of.
    with torch.no_grad():
        output, other, at_first = (
            model.train()(x) for model in (ours, theirs, bench.make_model(case))
        )
    apart, moved = float((output - other).abs().max()), float((output - at_first).abs().max())
    assert apart < moved / 1000


def test_the_loop_by_hand_notices_a_loss_that_is_nan():
    x, y = bench.make_data(PLAIN, 8)
    with pytest.raises(ArithmeticError, match="step 0"):
        next(bench.by_hand(bench.make_model(PLAIN), x * float("nan"), y, PLAIN, 2))
