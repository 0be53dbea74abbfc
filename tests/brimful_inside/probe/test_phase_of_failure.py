"""Memory that runs out in a training forward is trial as training, also right after an evaluation."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 3)
        self.full = False
    def forward(self, x):
        if self.full:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.inner(x)

model = Net()
target = Net().requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 8)
batches = TensorDataset(torch.randn(16, 8))

def step():
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def evaluate(modes=True, given=None):
    if modes:
        model.eval()
    with torch.no_grad():
        for one in ([x] * 3 if given is None else given):
            model(one[0] if given is not None else one)
    if modes:
        model.train()
"""

AFTER_AN_EVALUATION = {
    "before the first step": "evaluate(given=DataLoader(batches, 4))\nmodel.full = True\nstep()",
    "between steps": "step()\nevaluate()\nmodel.full = True\nstep()",
    "by no_grad alone": "step()\nevaluate(modes=False)\nmodel.full = True\nstep()",
    "of a loader": "step()\nevaluate(given=DataLoader(batches, 4))\nmodel.full = True\nstep()",
    "with another's forward first": ("step()\nevaluate()\nmodel.full = True\nwith torch.no_grad():\n    target(x)\nstep()"),
    "of the first epoch, before a batch was worked on": (
        "evaluate(given=DataLoader(batches, 4))\n"
        "for _ in DataLoader(batches, 2):\n    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    ),
    "of the epoch before": (
        "loader = DataLoader(batches, 4)\nfor _ in loader:\n    step()\n    break\nevaluate(given=DataLoader(batches, 2))\n"
        "model.full = True\nfor _ in loader:\n    step()"
    ),
}


@pytest.mark.parametrize("script", AFTER_AN_EVALUATION.values(), ids=AFTER_AN_EVALUATION.keys())
def test_a_training_forward_after_an_evaluation_fails_as_training(run_trial, script):
    trial = run_trial(HEAD + script, steps=20)
    assert [(failure["kind"], failure["phase"]) for failure in trial.failures] == [("out_of_device_memory", "train")]
    assert "eval" in trial.report["phases"]


@pytest.mark.parametrize(
    "script",
    [
        "step()\nmodel.eval()\nmodel(x)\nmodel.full = True\nmodel(x)",
        "step()\nevaluate()\nevaluate()\nmodel.full = True\nevaluate()",
        "step()\nmodel.full = False\nwith torch.no_grad():\n    model(x)\n    model.full = True\n    model(x)",
        "evaluate(given=DataLoader(batches, 4))\nmodel.full = True\nevaluate(given=DataLoader(batches, 2))",
        # dropout that goes on in an evaluation
        "step()\nmodel.eval()\nmodel.inner.train()\nmodel(x)\nmodel.full = True\nmodel(x)",
    ],
)
def test_an_evaluation_that_fails_does_so_as_one(run_trial, script):
    trial = run_trial(HEAD + script, steps=20)
    assert [(failure["kind"], failure["phase"]) for failure in trial.failures] == [("out_of_device_memory", "eval")]


COMPILED = """
def backend(graph, examples):
    def call(*inputs):
        if Net.out and torch.is_grad_enabled():
            raise MemoryError("no host memory left")
        return graph.forward(*inputs)
    return call
Net.out = False
net = model
model = torch.compile(net, backend=backend)
step()
evaluate(given=DataLoader(batches, 4))
Net.out = True
"""


@pytest.mark.parametrize(
    ("ends", "phase"), [("step()", "train"), ("net.eval()\nwith torch.enable_grad():\n    model(x)", "eval")]
)
def test_host_memory_that_runs_out_in_a_compiled_model_right_after_an_evaluation_is_of_its_mode(run_trial, ends, phase):
    """No hook sees the forward pass of a compiled model begin, and none is called where the host's memory runs out."""
    trial = run_trial(HEAD + COMPILED + ends, steps=20)
    assert [(failure["kind"], failure["phase"]) for failure in trial.failures] == [("out_of_host_memory", phase)]
