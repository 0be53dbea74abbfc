from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from brimful.recipes.captcha.model import Reader

EXAMPLE = Path(__file__).parents[3] / "examples" / "captcha" / "train.py"


def example() -> ModuleType:
    pytest.importorskip("captcha")
    spec = importlib.util.spec_from_file_location("captcha_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_network_is_the_example_scripts():
    torch.manual_seed(0)
    theirs = example().Reader().eval()
    ours = Reader().eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 1, 60, 160)
    assert torch.equal(ours(images), theirs(images))


def test_it_has_19_07_million_parameters_of_76_megabytes():
    parameters = list(Reader().parameters())
    assert sum(p.numel() for p in parameters) == 19_072_400
    assert round(sum(p.nbytes for p in parameters) / 1e6) == 76


@pytest.mark.parametrize(("height", "width", "length", "classes"), [(8, 8, 1, 2), (24, 64, 4, 10), (31, 85, 6, 26)])
def test_other_sizes_give_logits_for_each_character(height: int, width: int, length: int, classes: int):
    reader = Reader(classes, length, height, width)
    assert reader(torch.zeros(3, 1, height, width)).shape == (3, length, classes)
