"""The probe in whole scripts: it changes no loss, and it knows which phase a failure, a peak and a
step belong to.
"""

import pytest

WITHOUT_BRIMFUL = {"BRIMFUL_TRIAL_CONFIG": ""}
RANDOM = """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self):
        self.own = np.random.default_rng(5)
    def __len__(self):
        return 200
    def __getitem__(self, i):
        noise = torch.randn(12) + np.random.rand() + random.random() + self.own.random()
        return torch.full((12,), float(i)) / 200 + noise, i % 3

if __name__ == "__main__":
    torch.manual_seed(1); np.random.seed(2); random.seed(3)
    model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for workers in (0, 2):
        loader = DataLoader(
            Noisy(), batch_size=16, shuffle=True, num_workers=workers, drop_last=True)
        for epoch in range(2):
            model.train()
            for x, y in loader:
                with torch.autocast("cpu", torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad(); loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step(); scheduler.step()
                print(loss.item().hex())
            model.eval()
            with torch.no_grad():
                held_out = DataLoader(Noisy(), batch_size=50)
                print(sum(model(x).sum().item() for x, _ in held_out).hex())
    print(random.random(), np.random.rand(), torch.rand(()).item())
"""


@pytest.mark.parametrize(
    "worst_batch", [False, True], ids=["left alone", "scanned and found equal"]
)
def test_losses_are_the_same_bit_for_bit(run_trial, worst_batch):
    plain = run_trial(RANDOM, env=WITHOUT_BRIMFUL)
    probed = run_trial(RANDOM, cut=False, worst_batch=worst_batch, audits=True, keep_out=True)
    assert plain.exit_code == probed.exit_code == 0 and plain.events == {}
    assert len(plain.stdout.splitlines()) == 53
    assert probed.stdout == plain.stdout
    assert probed.report["steps"] == 48
    assert (probed.report["worst_batch"] is not None) == worst_batch


def test_a_trial_that_draws_from_the_scripts_random_state_would_be_caught(run_trial):
    changed = RANDOM.replace("for workers in (0, 2):", "torch.rand(())\n    for workers in (0, 2):")
    assert changed != RANDOM
    assert (
        run_trial(changed, env=WITHOUT_BRIMFUL).stdout
        != run_trial(RANDOM, env=WITHOUT_BRIMFUL).stdout
    )


FAILS_WHEN_FULL = """
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
    "with another's forward first": "step()\nevaluate()\nmodel.full = True\n"
    "with torch.no_grad():\n    target(x)\nstep()",
    "of the first epoch, before a batch was worked on": (
        "evaluate(given=DataLoader(batches, 4))\n"
        "for _ in DataLoader(batches, 2):\n    raise torch.OutOfMemoryError('CUDA out of memory. "
        "Tried to allocate 2.00 GiB')"
    ),
    "of the epoch before": (
        "loader = DataLoader(batches, 4)\nfor _ in loader:\n    step()\n    "
        "break\nevaluate(given=DataLoader(batches, 2))\n"
        "model.full = True\nfor _ in loader:\n    step()"
    ),
}


OF_AN_EVALUATION = (
    "step()\nmodel.eval()\nmodel(x)\nmodel.full = True\nmodel(x)",
    "step()\nevaluate()\nevaluate()\nmodel.full = True\nevaluate()",
    "step()\nmodel.full = False\nwith torch.no_grad():\n    model(x)\n    model.full = "
    "True\n    model(x)",
    "evaluate(given=DataLoader(batches, 4))\nmodel.full = "
    "True\nevaluate(given=DataLoader(batches, 2))",
    "step()\nmodel.eval()\nmodel.inner.train()\nmodel(x)\nmodel.full = True\nmodel(x)",
    "for _ in DataLoader(batches, 4):\n    step()\ntarget.full = True\nwith torch.no_grad():\n"
    "    target(x)",
)
# No hook sees the forward pass of a compiled model begin, and none is called where the host's
# memory runs out.
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


FAILURES = {
    **{name: (script, "device", "train") for name, script in AFTER_AN_EVALUATION.items()},
    **{f"evaluation {n}": (text, "device", "eval") for n, text in enumerate(OF_AN_EVALUATION)},
    "compiled, a step": (COMPILED + "step()", "host", "train"),
    "compiled, in eval mode": (
        COMPILED + "net.eval()\nwith torch.enable_grad():\n    model(x)",
        "host",
        "eval",
    ),
}


@pytest.mark.parametrize(("script", "memory", "phase"), FAILURES.values(), ids=FAILURES)
def test_memory_that_runs_out_after_or_in_an_evaluation_is_of_the_phase_that_asked_for_it(
    run_trial, script, memory, phase
):
    trial = run_trial(FAILS_WHEN_FULL + script, steps=20)
    assert [(failure["kind"], failure["phase"]) for failure in trial.failures] == [
        (f"out_of_{memory}_memory", phase)
    ]
    assert "eval" in trial.report["phases"]


SAMPLES_ASIDE = """
import copy, torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8).cuda()
average = copy.deepcopy(model).requires_grad_(False)
weights = torch.ones(8, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def ahead(loader):
    batches = iter(loader)
    current = next(batches)
    while current is not None:
        following = next(batches, None)
        yield current
        current = following

def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def sample(by):
    with torch.no_grad():
        by(torch.zeros(1 << 20, 8, device="cuda"))  # 32 MiB, and as much again in `by`

for epoch in range(3):
    for number, x in enumerate(DRAW(DataLoader(torch.ones(40, 8), 4))):
        x = x.cuda()
        WITHIN
    AFTER
"""


@pytest.mark.parametrize(
    ("draw", "within", "after", "phase"),
    [
        ("iter", "step(x)", "sample(average)", "eval"),
        ("ahead", "step(x)", "sample(average)", "eval"),
        ("iter", "step(x); number == 2 and sample(average)", "pass", "eval"),
        ("ahead", "sample(average); step(x)", "pass", "train"),
        ("iter", "step(x); sample(average); step(x)", "pass", "train"),
        ("iter", "step(x); sample(model); weights.sum().backward()", "pass", "train"),
    ],
)
def test_what_runs_without_gradients_between_a_step_and_the_next_batch_is_an_evaluation(
    run_trial, draw, within, after, phase
):
    text = SAMPLES_ASIDE.replace("DRAW", draw).replace("WITHIN", within).replace("AFTER", after)
    trial = run_trial(text, device="imaginary", steps=4, exit_code=0)
    peaks = {name: peak["allocated_bytes"] for name, peak in trial.report["phases"].items()}
    assert peaks.keys() == {"setup", "train", phase} and peaks[phase] > 64 << 20
    assert phase == "train" or peaks["train"] < 64 << 20


STEPS_AND_EVALUATION = """
import torch
from torch import nn

GIVES = {gives}
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
# made once: what is made between phases belongs to the one before
data = torch.randn(8192, 256, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step(batch):
    model(data[:batch]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def evaluate(batch):
    model.eval()
    with torch.no_grad():
        model(data[:batch])
    model.train()

step(32)
evaluate({evaluated})
if GIVES:
    step({trained})
else:
    model(data[:{trained}])  # a forward that no backward follows
"""
ACTIVATION_BYTES = 1024 * 4  # of one sample in the wide layer


def peaks(run_trial, folder, evaluated: int, trained: int, gives: bool = True) -> tuple[int, int]:
    script = STEPS_AND_EVALUATION.format(evaluated=evaluated, trained=trained, gives=gives)
    place = folder / f"{evaluated}-{trained}"
    place.mkdir()
    trial = run_trial.func(place, script, device="imaginary", steps=20, exit_code=0)
    phases = trial.report["phases"]
    return phases["train"]["allocated_bytes"], phases["eval"]["allocated_bytes"]


@pytest.mark.parametrize("gives", [True, False], ids=["a step", "a forward alone"])
def test_a_larger_batch_raises_the_peak_of_its_own_phase_alone(run_trial, tmp_path, gives):
    small_train, small_eval = peaks(run_trial, tmp_path, evaluated=64, trained=32, gives=gives)
    train, evaluation = peaks(run_trial, tmp_path, evaluated=64, trained=8192, gives=gives)
    assert train - small_train > 8000 * ACTIVATION_BYTES
    assert evaluation == small_eval < 8000 * ACTIVATION_BYTES
    if gives:
        train, evaluation = peaks(run_trial, tmp_path, evaluated=8192, trained=32)
        assert evaluation - small_eval > 8000 * ACTIVATION_BYTES and train == small_train


RECURRENT = """
import sys, torch
from torch import nn
model, head = nn.LSTM(3, 5), nn.Linear(5, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for _ in range(6):
    states, _ = model(torch.randn(7, int(sys.argv[1]), 3))
    head(states).mean().backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("settings", "counted"), [({"batch_size": 4}, 4), ({"batch_size": 5}, 7)])
def test_the_second_dimension_counts_where_it_is_the_batch_size_that_was_asked_for(
    run_trial, settings, counted
):
    trial = run_trial(RECURRENT, argv=("4",), settings=settings)
    assert set(trial.report["samples_per_step"][1:]) == {counted}, (
        "the first step is over before the hook is there"
    )
    assert any("counted by the model's input" in note for note in trial.report["notes"])


def test_progress_counts_batches_and_backward_passes_where_no_step_is_made(run_trial):
    trial = run_trial(
        """
        import time, torch
        from torch.utils.data import DataLoader
        weight = torch.nn.Parameter(torch.ones(4)); optimizer = torch.optim.SGD([weight], lr=0.1)
        for x in DataLoader(torch.ones(8, 4), 2):
            time.sleep(0.6); (x @ weight).sum().backward()
        """
    )
    last = trial.all("progress")[-1]
    assert (last["steps"], last["batches"], last["backward_passes"]) == (0, 4, 4)


SAMPLES = """
import sys, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[1] == "not looked up":
    model.register_forward_hook(lambda module, args, output: None)
for _ in range(8):
    model(torch.zeros(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    x = torch.zeros(64, 256, device="cuda")
    for _ in range(400):
        x = model(x)
    model(torch.zeros(64 << 10, 256, device="cuda"))
"""


@pytest.mark.parametrize(("how", "looked_up"), [("looked up", 396), ("not looked up", None)])
def test_what_follows_a_sampling_loop_is_seen_and_the_report_says_which_passes_were_left_out(
    run_trial, how, looked_up
):
    report = run_trial(SAMPLES, argv=(how,), device="imaginary", trace=True).report
    assert report["phases"]["eval"]["allocated_bytes"] > 64 << 20
    left_out = {work["what"]: work["left_out"] for work in report["left_out"]}
    assert left_out.get("forward passes of Linear") == looked_up


@pytest.mark.parametrize("device", ["imaginary", "cpu"])
def test_garbage_is_collected_as_ever_but_before_an_imaginary_card_is_used(run_trial, device):
    script = "import gc, torch; print(gc.get_threshold()[0], gc.isenabled())"
    assert run_trial(script, device=device).stdout.split() == [
        "100000" if device == "imaginary" else "700",
        "True",
    ]


RISING = """
import torch
weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
optimizer, kept = torch.optim.SGD([weight], lr=0.1), []
for number in range(1, 100):
    print(number, flush=True)
    if number in (2, 5, 9):
        kept.append(torch.zeros(50 << 20, dtype=torch.uint8, device="cuda"))
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("settles_after", "steps"), [(None, 5), (4, 13), (3, 8)])
def test_a_trial_goes_on_for_as_long_as_reserved_memory_rises(run_trial, settles_after, steps):
    trial = run_trial(
        RISING, device="imaginary", steps=4, settles_after=settles_after, see_eval=False
    )
    assert trial.report["steps"] == steps == int(trial.stdout.split()[-1])
