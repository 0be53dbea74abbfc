"""The bootstrap loads the probe in every kind of process it should, disturbs none, and does nothing
without a trial config."""

import json
import os
import subprocess
import sys

import pytest

import brimful_inside
from tests.brimful_inside.helper import BOOTSTRAP

STEPS = """
import torch
p = torch.nn.Parameter(torch.ones(3))
o = torch.optim.SGD([p], lr=0.1)
for _ in range(2):
    (p ** 2).sum().backward()
    o.step()
"""

# On an imaginary card the first optimizer imports no torch._dynamo, a third of a child's time; it
# loads before either.
IMAGINARY = {"device": "imaginary"}


def roles(trial):
    return [process["role"] for process in trial.processes]


def test_a_script_reports_its_process_and_torch_and_its_steps(run_trial):
    trial = run_trial(STEPS, fork=False)
    (events,) = trial.events.values()
    assert [name for name, _ in events][:2] == ["process_started", "torch_imported"]
    assert trial.processes[0]["role"] == "rank" and trial.processes[0]["argv"][-1] == "script.py"
    assert trial.report["steps"] == 2 and trial.report["ended"] == "script_ended"


def test_a_script_without_torch_reports_its_process_alone(run_trial):
    trial = run_trial("print('no torch here')", exit_code=0, fork=False)
    assert [[name for name, _ in events] for events in trial.events.values()] == [
        ["process_started"]
    ]


@pytest.mark.parametrize(
    "before",
    [
        "import threading; t = threading.Thread(target=__import__, args=('torch',)); t.start(); "
        "t.join()",
        "import sys; sys.path[:] = [p for p in sys.path if 'bootstrap' not in p]",
        "import importlib.util; assert importlib.util.find_spec('torch').loader is not None",
    ],
    ids=["in a thread", "bootstrap taken off the path", "searched first"],
)
def test_torch_is_seen_however_it_is_imported(run_trial, before):
    assert run_trial(before + "\n" + STEPS, fork=False, **IMAGINARY).report["steps"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", STEPS],
        ["-m", "package"],
        ["runs.py"],
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
    ],
)
def test_the_probe_loads_for_a_command_string_a_module_runpy_and_pytest(
    run_trial, tmp_path, arguments
):
    work = tmp_path / "work"
    (work / "package").mkdir(parents=True)
    (work / "package" / "__main__.py").write_text(STEPS)
    (work / "runs.py").write_text("import runpy; runpy.run_path('package/__main__.py')")
    (work / "test_it.py").write_text(
        "def test_training():\n" + STEPS.replace("\n", "\n    ").rstrip() + "\n"
    )
    trial = run_trial(arguments, **IMAGINARY)
    assert trial.exit_code == 0 and trial.report["steps"] == 2


def test_nothing_is_written_under_dash_i(run_trial):
    trial = run_trial(STEPS, python=(sys.executable, "-I"))
    assert trial.exit_code == 0 and trial.events == {}


def test_without_a_trial_config_the_bootstrap_does_nothing():
    code = "import sys; print('brimful_inside' in sys.modules)"
    variables = {**os.environ, "PYTHONPATH": str(BOOTSTRAP)}
    variables.pop("BRIMFUL_TRIAL_CONFIG", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False" and done.stderr == ""


def test_nothing_of_ours_is_left_on_the_path(run_trial):
    source = os.path.dirname(os.path.dirname(brimful_inside.__file__))
    printed = json.loads(
        run_trial("import sys, json; print(json.dumps(sys.path))", fork=False).stdout
    )
    added = {
        path for path in printed if path.startswith(source) and not path.startswith(str(BOOTSTRAP))
    }
    assert added <= set(sys.path)  # an editable install puts it there; the bootstrap does not


def test_a_hidden_sitecustomize_runs_as_it_would_without_us(run_trial, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text(
        "import builtins; builtins.theirs = 'was here'"
    )
    trial = run_trial(
        "import sitecustomize; print(theirs, sitecustomize.__file__)",
        env={"PYTHONPATH": f"{BOOTSTRAP}{os.pathsep}{tmp_path / 'theirs'}"},
    )
    assert trial.stdout.split() == ["was", "here", str(tmp_path / "theirs" / "sitecustomize.py")]
    assert roles(trial) == ["rank"]


@pytest.mark.parametrize(
    ("before", "config", "reason"),
    [
        ("", {"version": 99}, "wire version 99"),
        ("import sys\nsys.modules['brimful_inside.probe.probe'] = None", {}, "probe.probe"),
    ],
    ids=["a config that cannot be read", "an error while installing"],
)
def test_an_error_of_ours_leaves_a_reason_and_the_script_alone(run_trial, before, config, reason):
    trial = run_trial(before + STEPS + "print('fine')", fork=False, **config)
    assert trial.stdout == "fine\n" and trial.exit_code == 0
    (path,) = trial.folder.glob("probe-error-*.txt")
    assert reason in path.read_text()


def test_workers_of_a_loader_forked_and_spawned_report_as_workers(run_trial):
    trial = run_trial(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            data = TensorDataset(torch.arange(8.))
            for how in ("fork", "spawn"):
                options = dict(num_workers=1, multiprocessing_context=how)
                for batch in DataLoader(data, batch_size=4, **options):
                    pass
        """,
        exit_code=0,
    )
    assert sorted(r for r in roles(trial)) == [
        "child",
        "child",
        "rank",
        "worker",
        "worker",
        "worker",
    ]  # a worker reports as a child first; the third is spawn's resource tracker
    assert [r["ended"] for r in trial.reports] == ["script_ended"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("through", "ranks"),
    [
        (("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"), 2),
        (("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"), 1),
    ],
)
def test_torchrun_and_accelerate_launch_are_launchers_and_their_children_are_ranks(
    run_trial, through, ranks
):
    trial = run_trial(STEPS, through=through)
    assert trial.exit_code == 0 and sorted(roles(trial)) == ["launcher"] + ["rank"] * ranks
    assert [(r["rank"], r["world_size"], r["steps"]) for r in trial.reports] == [
        (n, ranks, 2) for n in range(ranks)
    ]
