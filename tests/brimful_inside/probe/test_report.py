"""Trials of whole scripts: what each kind of script gives is a report, never a crash of ours."""

import pytest

HEAD = """
import sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(160, 8), torch.randint(0, 3, (160,)))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=16, shuffle=True)
held_out = DataLoader(data, batch_size=20)

def step(x, y):
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss

def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
    model.train()
"""


def loader_of(trial, role):
    return next(seen for seen in trial.report["loaders"] if seen["role"] == role)


def test_a_plain_training_is_seen_in_full_and_cut(run_trial):
    trial = run_trial(
        HEAD
        + """
for epoch in range(50):
    for x, y in loader:
        loss = step(x, y)
    evaluate()
    print("epoch", epoch, flush=True)
"""
    )
    report = trial.report
    assert (trial.exit_code, trial.stdout, trial.failures) == (0, "epoch 0\n", [])
    plain = {
        "ended": "steps_done",
        "steps": 4,
        "micro_batches_per_step": [1] * 4,
        "samples_per_step": [16] * 4,
        "notes": [],
    }
    assert report == {**report, **plain} and list(report["phases"]) == ["setup", "train", "eval"]
    lengths = [len(report[name]) for name in ("step_s", "loading_s", "losses")]
    assert lengths == [3, 3, 4] and min(report["step_s"]) > 0
    train, evaluation = loader_of(trial, "train"), loader_of(trial, "eval")
    assert train == {**train, "batches_seen": 4, "samples_seen": 64, "sampler": "RandomSampler"}
    assert train["batches"][0] == {"samples": 16, "shapes": [[16, 8], [16]], "checksum": None}
    assert (evaluation["batches_seen"], evaluation["length"]) == (2, 8)
    optimizer = report["optimizers"][0]
    assert (optimizer["name"], optimizer["learning_rates"]) == ("AdamW", [1e-3])
    assert not report["phases"]["train"]["host_is_true"]


def test_a_trial_that_is_killed_in_its_first_forward_pass_leaves_its_training_loader(run_trial):
    trial = run_trial(
        HEAD
        + """
import os, signal
model.register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
for x, y in loader:
    step(x, y)
"""
    )
    assert loader_of(trial, "train")["batch_size"] == 16


def test_a_loop_with_workers_steps_on_after_the_cut_with_one_batch_an_epoch(run_trial):
    trial = run_trial(
        HEAD
        + """
for epoch in range(6):
    seen = 0
    for x, y in DataLoader(data, batch_size=16, num_workers=1) if epoch < 2 else loader:
        loss = step(x, y); seen += 1
    print(seen, float(loss) > 0, flush=True)
evaluate()
step(*data[:16])
print("never")
"""
    )
    assert trial.stdout.splitlines() == ["6 True"] + ["1 True"] * 5, (
        "two steps find a batch that the worker made ahead"
    )
    assert (
        trial.report["ended"] == "steps_done"
        and "eval" in trial.report["phases"]
        and trial.failures == []
    )


@pytest.mark.parametrize(("evaluates", "steps"), [(False, 4 + 200), (True, 11)])
def test_a_script_without_a_loader_is_counted_by_its_models_input_and_ends_after_its_evaluation(
    run_trial, evaluates, steps
):
    trial = run_trial(
        HEAD
        + """
x, y = data.tensors
for i in range(10_000):
    step(x[:32], y[:32])
    if i == 10 and "evaluates" in sys.argv:
        with torch.no_grad():
            model(x)
""",
        argv=("evaluates",) if evaluates else (),
    )
    report = trial.report
    assert report["ended"] == "steps_done" and report["steps"] == steps
    assert report["samples_per_step"][1:4] == [32, 32, 32] and report["loaders"] == []
    assert "no DataLoader was used" in report["notes"]
    assert (
        any("evaluation was not reached in " in note for note in report["notes"])
        == ("eval" not in report["phases"])
        == (not evaluates)
    )


@pytest.mark.parametrize(
    ("script", "code", "steps", "note"),
    [
        (
            "for x, y in loader:\n    F.cross_entropy(model(x), y).backward()\n",
            0,
            0,
            "no optimizer stepped",
        ),
        (
            "for x, y in list(loader)[:2]:\n    step(x, y)\nsys.exit(3)\n",
            3,
            2,
            "the script ended after 2 of the 4 steps of the trial",
        ),
    ],
)
def test_a_script_that_ends_without_the_steps_of_the_trial_says_so(
    run_trial, script, code, steps, note
):
    trial = run_trial(HEAD + script)
    assert (
        trial.exit_code == code
        and trial.report["ended"] == "script_ended"
        and trial.report["steps"] == steps
    )
    assert (
        note in trial.report["notes"]
        and trial.failures == []
        and loader_of(trial, "train")["batches_seen"] == 10
    )


def test_a_loader_without_an_end_that_brimful_ended_is_known_as_the_reason(run_trial):
    script = "batches = iter(loader)\nwhile True:\n    step(*next(batches))\n"
    trial = run_trial(HEAD + script)
    (failure,) = trial.failures
    assert (failure["raised_by"], failure["after_measured"]) == ("ended", True)


THREAD = "import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()\n"


@pytest.mark.parametrize(
    ("script", "type_", "caught", "after_measured", "ended", "place"),
    [
        (
            "for x, y in loader:\n    step(x[:, :5], y)\n",
            "RuntimeError",
            False,
            False,
            "crashed",
            "in step",
        ),
        (
            "n = 0\nfor x, y in loader:\n    step(x, y); n += 1\nassert n == 10",
            "AssertionError",
            False,
            True,
            "steps_done",
            "",
        ),
        (
            THREAD + "for x, y in list(loader)[:2]:\n    step(x, y)\n",
            "ZeroDivisionError",
            True,
            False,
            "script_ended",
            "",
        ),
    ],
    ids=["the script's own", "after the measured steps, so perhaps ours", "in a thread"],
)
def test_an_exception_is_reported_with_its_place(
    run_trial, script, type_, caught, after_measured, ended, place
):
    trial = run_trial(HEAD + script)
    (failure,) = trial.failures
    assert (failure["kind"], failure["type"], failure["caught"]) == ("crashed", type_, caught)
    assert (failure["after_measured"], trial.report["ended"]) == (after_measured, ended)
    assert (
        failure["where"].endswith(place) and type_ in failure["traceback"] and type_ in trial.stderr
    )


def test_a_training_inside_a_phase_that_the_script_names_has_whole_steps_without_its_evaluations(
    run_trial,
):
    trial = run_trial(
        HEAD
        + """
import brimful_inside.script as brimful, time
forward, now = model.forward, [0.0]
time.perf_counter = lambda: now[0]
def slow(x):
    now[0] += 0.05 if model.training else 0.3
    return forward(x)
model.forward = slow
with brimful.phase("tuning"):
    for i, (x, y) in enumerate(loader):
        step(x, y)
        if i == 1:
            evaluate()
"""
    )
    assert list(trial.report["phases"]) == ["setup", "tuning"]
    assert trial.report["step_s"] == pytest.approx([0.05] * 3)


def test_two_optimizers_of_a_gan_are_counted_each(run_trial):
    trial = run_trial(
        HEAD
        + """
critic = nn.Linear(8, 1); maker = nn.Linear(4, 8)
of_critic, of_maker = torch.optim.Adam(critic.parameters()), torch.optim.RMSprop(maker.parameters())
for x, _ in loader:
    with torch.no_grad():
        fake = maker(torch.randn(len(x), 4))
    of_critic.zero_grad(); (critic(fake).mean() - critic(x).mean()).backward(); of_critic.step()
    of_maker.zero_grad()
    (-critic(maker(torch.randn(len(x), 4))).mean()).backward()
    of_maker.step()
"""
    )
    report = trial.report
    assert [(o["name"], o["steps"]) for o in report["optimizers"]] == [("Adam", 4), ("RMSprop", 4)]
    assert report["micro_batches_per_step"] == [1] * 4
    assert loader_of(trial, "train")["batches_seen"] == 4 and "eval" not in report["phases"]
    assert any("2 optimizers stepped" in note for note in report["notes"])


@pytest.mark.parametrize(("loads", "environments"), [(False, "gymnasium"), (True, None)])
def test_a_script_without_a_loader_that_has_environments_may_play_in_them(
    run_trial, loads, environments
):
    trial = run_trial(
        HEAD
        + """
import types
sys.modules["gymnasium"] = types.ModuleType("gymnasium")
for x, y in loader if sys.argv[1:] else [data[:32]] * 6:
    step(x, y)
""",
        argv=["loads"] if loads else [],
    )
    assert trial.report["environments"] == environments


def test_a_backward_pass_before_another_optimizers_step_is_no_part_of_this_ones(run_trial):
    trial = run_trial(
        HEAD
        + """
rate, critic, actor = nn.Linear(8, 1), nn.Linear(8, 1), nn.Linear(8, 8)
optimizers = [(net, torch.optim.Adam(net.parameters())) for net in (rate, critic, actor)]
for _ in range(6):
    for net, optimizer in optimizers:
        optimizer.zero_grad(); net(data.tensors[0][:32]).mean().backward(); optimizer.step()
"""
    )
    assert trial.report["micro_batches_per_step"] == [1] * 6
    assert set(trial.report["samples_per_step"][1:]) == {32}


def test_an_agent_that_acts_on_one_state_and_learns_of_a_batch_is_counted_by_the_batch(run_trial):
    trial = run_trial(
        HEAD
        + """
x, y = data.tensors
for _ in range(6):
    with torch.no_grad():
        model(x[:1])
    step(x[:32], y[:32])
"""
    )
    assert set(trial.report["samples_per_step"][1:]) == {32}


def test_steps_that_a_scaler_skips_are_reported(run_trial):
    trial = run_trial(
        HEAD
        + """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    scaler.scale(loss * (float("inf") if i in (1, 2) else 1)).backward()
    scaler.step(optimizer); scaler.update()
"""
    )
    report = trial.report
    assert (report["steps"], report["micro_batches_per_step"]) == (4, [1, 3, 1, 1])
    assert "steps skipped by the GradScaler: 2" in report["notes"]


TEACHER = """
teacher = nn.Linear(8, 3).eval()
for x, y in loader:
    with torch.no_grad():
        wanted = teacher(x)
    optimizer.zero_grad(); (model(x) - wanted).square().mean().backward(); optimizer.step()
"""
AVERAGE = """
import copy
average = copy.deepcopy(model).requires_grad_(False).eval()
for x, y in loader:
    step(x, y)
    average.load_state_dict(model.state_dict())
"""


@pytest.mark.parametrize(
    ("script", "most_visits"),
    [(TEACHER, 2), (AVERAGE, 1)],
    ids=["a teacher", "a copy for averages"],
)
def test_a_model_in_eval_mode_beside_the_trained_one_makes_no_evaluation(
    run_trial, script, most_visits
):
    trial = run_trial(HEAD + script)
    assert list(trial.report["phases"]) == ["setup", "train"] and trial.failures == []
    assert (
        trial.report["phases"]["train"]["visits"] <= most_visits
    )  # a first batch may be corrected from "eval"
    assert [seen["role"] for seen in trial.report["loaders"]] == ["train"]


def test_a_pass_over_the_data_before_training_is_whole(run_trial):
    trial = run_trial(
        HEAD
        + """
mean = sum(x.sum(0) for x, _ in loader) / 160
with torch.no_grad():
    codes = torch.cat([model(x) for x, _ in held_out])
assert len(codes) == 160
for x, y in loader:
    step(x - mean, y)
"""
    )
    assert trial.failures == [] and trial.report["steps"] == 4


def test_phases_that_the_script_names_have_peaks_of_their_own(run_trial):
    trial = run_trial(
        HEAD
        + """
from brimful_inside.script import phase, setting
with phase("encoding"):
    with torch.no_grad():
        codes = [model(x) for x, _ in held_out]
with phase("indexing") as indexing:
    indexing.cached = True
assert setting("batch_size", 1) == 48
for x, y in loader:
    step(x, y)
""",
        settings={"batch_size": 48},
    )
    phases = trial.report["phases"]
    assert phases["encoding"]["host_bytes"] > 0 and not phases["encoding"]["cached"]
    assert phases["indexing"]["cached"] and phases["indexing"]["host_bytes"] is None
    assert "eval" not in phases and trial.failures == []


@pytest.mark.heavy
def test_host_memory_by_phase_is_true_in_a_memory_trial(run_trial):
    trial = run_trial(
        HEAD
        + """
def touch(mib):
    return torch.zeros(mib << 18).add_(1).sum()
touch(300)
for x, y in loader:
    step(x, y); touch(64)
model.eval()
with torch.no_grad():
    for x, y in held_out:
        model(x); touch(128)
""",
        measure_host_memory=True,
    )
    phases = {name: peak["host_bytes"] / 2**20 for name, peak in trial.report["phases"].items()}
    assert all(peak["host_is_true"] for peak in trial.report["phases"].values())
    assert phases["setup"] - phases["train"] == pytest.approx(236, abs=25)
    assert phases["eval"] - phases["train"] == pytest.approx(64, abs=15)


ON_CARD = """
import sys, torch
from torch.utils.data import DataLoader
weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
def step(x, times):
    loss = (x.cuda() @ weight).repeat(times, 1).square().sum()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.mark.parametrize("caught", [False, True])
def test_memory_that_runs_out_on_an_imaginary_card_is_reported_caught_or_not(run_trial, caught):
    trial = run_trial(
        ON_CARD
        + """
for i, x in enumerate(DataLoader(torch.ones(64, 1024), 8)):
    try:
        step(x, 100_000 if i == 2 else 10)
    except torch.OutOfMemoryError:
        if "caught" not in sys.argv:
            raise
""",
        argv=("caught",) if caught else (),
        device="imaginary",
        capacity_bytes=1 << 30,
    )
    (failure,) = trial.failures
    assert (failure["kind"], failure["phase"], failure["step"]) == (
        "out_of_device_memory",
        "train",
        2,
    )
    assert failure["caught"] == caught and (caught or "script.py" in failure["where"])
    ended = (0, "steps_done", 4) if caught else (1, "out_of_memory", 2)
    assert (trial.exit_code, trial.report["ended"], trial.report["steps"]) == ended


def test_the_scripts_own_peak_on_the_card_reads_as_without_brimful(run_trial):
    trial = run_trial(
        ON_CARD
        + """
for x in DataLoader(torch.ones(64, 1024), 8):
    step(x, 10)
before = torch.cuda.max_memory_allocated()
with torch.no_grad():
    for x in DataLoader(torch.ones(64, 1024), 8):
        (x.cuda() @ weight).sum()
peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
print(before == torch.cuda.max_memory_allocated() == peak)
torch.cuda.reset_peak_memory_stats()
print(torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated())
""",
        device="imaginary",
    )
    phases = trial.report["phases"]
    assert trial.stdout == "True\nTrue\n", trial.stderr
    assert phases["eval"]["allocated_bytes"] < phases["train"]["allocated_bytes"]
    assert phases["train"]["device_bytes"] == phases["train"]["reserved_bytes"] + (500 << 20)


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_an_evaluation_before_the_first_step_without_a_loader_is_no_setup(run_trial, has_optimizer):
    """Of a model that no optimizer holds it may be any preparation."""
    made = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
    begins = HEAD if has_optimizer else HEAD.replace(made, "")
    evaluates = """
x, y = data.tensors
model.eval()
with torch.no_grad():
    model(x)
model.train()
"""
    trains = "for i in range(40):\n    step(x[:32], y[:32])\n"
    trial = run_trial(begins + evaluates + ("" if has_optimizer else made) + trains)
    assert ("eval" in trial.report["phases"]) == has_optimizer
    reached_none = any("evaluation was not reached in " in n for n in trial.report["notes"])
    assert reached_none != has_optimizer


@pytest.mark.parametrize(
    ("holds", "unused"),
    [
        ("DataLoader(TensorDataset(torch.ones(8, 8)), 4)", True),
        ("DataLoader(data, 4)", False),  # a loader over the training's data is another's source
        ("None", False),
    ],
)
def test_a_loader_that_gave_no_batch_is_known_and_the_note_says_what_goes_further(
    run_trial, holds, unused
):
    train = f"held = {holds}\nfor x, y in DataLoader(data, 16):\n    step(x, y)\n"
    report = run_trial(HEAD + train).report
    assert report["unused_loader"] is unused
    note = "evaluation was not reached in %d steps and is not counted; --steps %d may reach it"
    assert note % (report["steps"], 5 * report["steps"]) in report["notes"]
