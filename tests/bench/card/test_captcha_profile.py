from typing import Any

import pytest
import torch

from bench.card import captcha_profile as bench
from recipes.captcha.model import Reader


def test_a_profile_names_the_operations_of_a_step_and_its_time(monkeypatch, capfd):
    for name, steps in (("WARM_UP", 1), ("TIMED", 2), ("PROFILED", 1)):
        monkeypatch.setattr(bench, name, steps)
    figures = bench.profile(bench.VARIANTS[0], "cpu", samples=2)
    assert figures["images_per_s"] == pytest.approx(2e3 / figures["step_ms"])
    names = [operation["name"] for operation in figures["operations"]]
    assert any("convolution" in name for name in names)
    assert sum(operation["share"] for operation in figures["operations"]) <= 1.001


@pytest.mark.parametrize("variant", bench.VARIANTS, ids=lambda variant: variant.name)
def test_a_variant_reads_as_the_reader_does(variant):
    torch.manual_seed(0)
    reader, images = Reader(dropout=0.0), torch.randn(2, 1, 60, 160)
    before: Any = reader.get_submodule("features.0.0")
    expected = reader(images)
    variant.change(reader)
    first: Any = reader.get_submodule("features.0.0")
    if first.in_channels == 8:  # a new layer: it gets the weights of the one that it replaces
        first.weight.data[:, :1], first.bias = before.weight.data, before.bias
    assert torch.allclose(reader(images), expected, atol=1e-5)
