import random
import types

import numpy as np
import torch

from brimful_inside.probe.worst_case.rng_state import untouched


def test_looking_at_data_leaves_every_random_state_as_it_was():
    data = types.SimpleNamespace(a=np.random.default_rng(1), b=torch.Generator().manual_seed(2), c=random.Random(3))

    def draw():
        globally = random.random(), np.random.rand(), torch.rand(()).item()
        return *globally, data.a.random(), torch.rand((), generator=data.b).item(), data.c.random()

    def seed():
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    seed()
    with untouched(data):
        first = draw()
        draw()
    assert draw() == first
