"""The network is that of the example script, and its size and memory are what the recipe's
documentation has.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from recipes.captcha.model import Reader

GIB = 1 << 30
EXAMPLE = Path(__file__).parents[3] / "examples" / "captcha" / "train.py"


def example() -> ModuleType:
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


@pytest.mark.parametrize(
    ("height", "width", "length", "classes"), [(8, 8, 1, 2), (24, 64, 4, 10), (31, 85, 6, 26)]
)
def test_other_sizes_give_logits_for_each_character(
    height: int, width: int, length: int, classes: int
):
    reader = Reader(classes, length, height, width)
    assert reader(torch.zeros(3, 1, height, width)).shape == (3, length, classes)


def saved_bytes(batch: int, autocast: bool) -> int:
    """What a forward pass keeps for the backward one besides parameters, each storage once."""
    reader, kept = Reader(dropout=0.0), {}
    own = {p.untyped_storage().data_ptr() for p in reader.parameters()}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (
                storage.nbytes(),
                tensor,
            )  # held, so that no address is used twice
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        reader(torch.randn(batch, 1, 60, 160))
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize(("autocast", "gib"), [(True, 4.4), (False, 7.7)])
def test_activations_at_1024(autocast: bool, gib: float):
    """The slope over the batch, so that weights cast to bf16 do not count. The images themselves
    are in it.
    """
    slope = (saved_bytes(6, autocast) - saved_bytes(2, autocast)) / 4
    assert slope * 1024 / GIB == pytest.approx(gib, abs=0.1)
