"""A script whose evaluation keeps its outputs on the card, from end to end; and the same script keeping numbers alone."""

from __future__ import annotations

import pytest
from helper import brimful, python, script

KEEPS = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(64, 65536).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0
for x in DataLoader(torch.ones(96, 64), 8):
    loss = model(x.cuda()).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    total = total + loss.detach()
model.eval()
kept = []
with torch.no_grad():
    for x in DataLoader(torch.ones(1000, 64), 8):
        kept.append(model(x.cuda())WHAT)
joined = torch.stack(kept)
"""


@pytest.mark.parametrize(("what", "told"), [("", True), (".cpu()", False), (".mean()", False)])
def test_only_what_grows_on_the_card_is_warned_of(tmp_path, what, told):
    path = script(tmp_path, KEEPS.replace("WHAT", what))
    done = brimful(tmp_path, "predict", "--gpu-memory", "8GiB", "--json", *python(path))
    assert done.code == 0, done.err
    grows = [warning for warning in done.json["warnings"] if warning["code"] == "memory-grows"]
    assert len(grows) == told, grows
    if told:
        assert "2.00 MiB more" in grows[0]["problem"] and "2 of 125 batches" in grows[0]["problem"], "8 x 65536 floats a batch"
        assert "246 MiB more" in grows[0]["explanation"]
