import pytest

from bench.card import captcha_profile as bench


def test_a_profile_names_the_operations_of_a_step_and_its_time(monkeypatch, capfd):
    for name, steps in (("WARM_UP", 1), ("TIMED", 2), ("PROFILED", 1)):
        monkeypatch.setattr(bench, name, steps)
    figures = bench.profile(bench.VARIANTS[0], "cpu", samples=2)
    assert figures["images_per_s"] == pytest.approx(2e3 / figures["step_ms"])
    names = [operation["name"] for operation in figures["operations"]]
    assert any("convolution" in name for name in names)
    assert sum(operation["share"] for operation in figures["operations"]) <= 1.001
