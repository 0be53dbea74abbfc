"""What hooks on the parameters see of a step's parts."""

import pytest
import torch

from brimful_inside.probe.hooks import gradient_noise
from brimful_inside.probe.hooks.gradient_noise import EVERY, GradientNoise

NOISE = 4.0  # the standard deviation of a sample's gradient, whose mean is 1


def trained(
    noise: GradientNoise,
    passes: int,
    steps: int = 40 * EVERY,
    weigh: bool = True,
    batches: int | None = None,
    scale: float = 1.0,
) -> float:
    """The noise scale after steps of 8 samples a pass. Gradients are Gaussian: 16 samples."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(50))
    bias = torch.nn.Parameter(torch.zeros(()))
    groups = [{"params": [weight, bias]}]
    for number in range(1, steps + 1):
        weight.grad = bias.grad = None
        for _ in range(passes):
            gradient = 1 + NOISE * torch.randn(8, 50, generator=generator).mean(0)
            loss = (weight * gradient).sum() + 0 * bias
            (loss * scale / (passes if weigh else 1)).backward()
            noise.went_backward()
        torch.nn.utils.clip_grad_norm_([weight], 0.1)
        noise.step(number, groups, 8 * passes, passes if batches is None else batches)
    noise.read()
    return noise.scale.trace / noise.scale.square if noise.scale.measured else 0.0


@pytest.mark.parametrize(
    ("every", "more", "measured"),
    [
        (EVERY, {}, 40),
        (EVERY, {"weigh": False}, 40),
        (EVERY, {"scale": 1024.0}, 40),
        (1, {"steps": 100}, 99),
    ],
    ids=["mean", "sum", "scaled", "a trial for it, which looks at each step"],
)
def test_micro_batches_show_the_noise_scale_however_they_are_weighed(every, more, measured):
    noise = GradientNoise(every)
    assert trained(noise, passes=4, **more) == pytest.approx(NOISE**2, rel=0.3)
    assert (noise.scale.measured, noise._passes.watches) == (measured, every == 1)


def test_ranks_show_it_by_the_gradient_before_they_exchange_it(monkeypatch):
    monkeypatch.setattr(gradient_noise, "_is_ddp", True)
    monkeypatch.setattr(gradient_noise.exit, "others", lambda: 1)
    noise, parameter = GradientNoise(EVERY), torch.nn.Parameter(torch.zeros(2))
    for number in (1, 2, EVERY + 1):
        parameter.grad = None
        (parameter * torch.tensor([3.0, 4.0])).sum().backward()
        parameter.grad = torch.tensor([0.0, 4.0])  # the ranks' mean
        noise.went_backward()
        noise.step(number, [{"params": [parameter]}], 8, 1)
    # 25 of 8 samples, 16 of 16
    assert noise.scale.trace == pytest.approx((25 - 16) / (1 / 8 - 1 / 16))
    assert noise.scale.square == pytest.approx((16 * 16 - 8 * 25) / 8)


def test_one_batch_of_one_rank_several_losses_of_a_batch_and_shards_show_nothing(monkeypatch):
    for passes, batches in ((1, 1), (2, 1)):
        noise = GradientNoise(EVERY)
        trained(noise, passes, steps=2 * EVERY, batches=batches)
        assert noise.scale.measured == 0
    assert trained(GradientNoise(0), 4, steps=EVERY) == 0.0
    monkeypatch.setattr(gradient_noise.exit, "others", lambda: 1)  # and no DDP
    assert trained(GradientNoise(EVERY), 4, steps=2 * EVERY) == 0.0
