import pytest
import torch

from bench import engine_cost as bench

PLAIN = bench.Case(10, 8, 32)


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
