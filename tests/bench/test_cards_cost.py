import pytest

from bench import cards_cost as bench


def turns(*seconds):
    """Rounds of one program, each with the processor seconds of the three questions."""
    return [
        bench.Turn("captcha", question, 1, 3, processor_s, 2 * processor_s)
        for of_round in seconds
        for question, processor_s in zip(bench.QUESTIONS, of_round, strict=True)
    ]


def test_a_ratio_is_of_the_same_round_and_the_median_of_rounds():
    ratios = bench.figures(turns((10, 11, 15), (20, 30, 60), (10, 12, 18)))
    assert ratios["captcha"]["all_processor"] == pytest.approx(1.8)
    assert ratios["captcha"]["three_wall"] == pytest.approx(1.2)
    assert ratios["captcha"]["one_processor"] == 1
