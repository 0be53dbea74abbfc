"""The bootstrap opens in every kind of process it should, disturbs none, and stays shut where nobody gave orders."""

import json
import os
import subprocess
import sys

import pytest

import brimful_inside

STEPS = """
import torch
p = torch.nn.Parameter(torch.ones(3))
o = torch.optim.SGD([p], lr=0.1)
for _ in range(2):
    (p ** 2).sum().backward()
    o.step()
"""

# On an imaginary card the first optimizer imports no torch._dynamo, a third of a child's time; it loads before either.
CARD = {"name": "A card", "total_bytes": 8 << 30, "context_bytes": 0, "capability": [8, 0], "multiprocessors": 108}
IMAGINARY = {"device": "imaginary", "card": CARD}


def roles(trial):
    return [process["role"] for process in trial.processes]


def test_a_script_says_hello_and_that_torch_was_seen_and_reports(run_trial):
    trial = run_trial(STEPS)
    (events,) = trial.events.values()
    assert [name for name, _ in events][:2] == ["process_started", "torch_imported"]
    assert trial.processes[0]["role"] == "rank" and trial.processes[0]["argv"][-1] == "script.py"
    assert trial.report["steps"] == 2 and trial.report["ended"] == "script_ended"


def test_a_script_without_torch_says_hello_and_nothing_else(run_trial):
    trial = run_trial("print('no torch here')")
    assert trial.exit_code == 0
    assert [[name for name, _ in events] for events in trial.events.values()] == [["process_started"]]


@pytest.mark.parametrize(
    "before",
    [
        "import threading; t = threading.Thread(target=__import__, args=('torch',)); t.start(); t.join()",
        "import sys; sys.path[:] = [p for p in sys.path if 'bootstrap' not in p]",
        "import sys; sys.path.insert(0, '.'); import importlib; importlib.import_module('torch')",
        "import importlib.util; assert importlib.util.find_spec('torch').loader is not None",
    ],
    ids=["in a thread", "bootstrap taken off the path", "by importlib", "looked for first"],
)
def test_torch_is_seen_however_it_is_imported(run_trial, before):
    assert run_trial(before + "\n" + STEPS, **IMAGINARY).report["steps"] == 2


def test_the_door_opens_for_a_command_string_a_module_and_runpy(run_trial, tmp_path):
    work = tmp_path / "work"
    (work / "package").mkdir(parents=True)
    (work / "package" / "__main__.py").write_text(STEPS)
    (work / "runs.py").write_text("import runpy; runpy.run_path('package/__main__.py')")
    for number, arguments in enumerate([["-c", STEPS], ["-m", "package"], ["runs.py"]]):
        (tmp_path / str(number)).mkdir()
        assert run_trial_in(run_trial, tmp_path / str(number), arguments, work).report["steps"] == 2


def run_trial_in(run_trial, folder, arguments, work):
    return run_trial.func(folder, arguments, cwd=work, **IMAGINARY)


def test_the_door_opens_under_pytest(run_trial, tmp_path):
    (tmp_path / "work").mkdir()
    body = "".join(f"    {line}\n" for line in STEPS.splitlines() if line)
    (tmp_path / "work" / "test_it.py").write_text("def test_training():\n" + body)
    trial = run_trial(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"], **IMAGINARY)
    assert trial.exit_code == 0 and trial.report["steps"] == 2


def test_nothing_is_written_under_dash_i(run_trial):
    trial = run_trial(STEPS, python=(sys.executable, "-I"))
    assert trial.exit_code == 0 and trial.events == {}


def test_without_orders_the_door_does_nothing(bootstrap):
    code = "import sys; print('brimful_inside' in sys.modules)"
    variables = {**os.environ, "PYTHONPATH": str(bootstrap)}
    variables.pop("BRIMFUL_TRIAL_CONFIG", None)
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert done.stdout.strip() == "False" and done.stderr == ""


def test_nothing_of_ours_is_left_on_the_path(run_trial, tmp_path):
    source = str(os.path.dirname(os.path.dirname(brimful_inside.__file__)))
    trial = run_trial("import sys, json; print(json.dumps(sys.path))", python=(sys.executable, "-S"))
    # -S leaves out site, and with it the bootstrap: what is on the path then is the user's own
    assert trial.events == {}
    (tmp_path / "second").mkdir()
    seen = json.loads(run_trial.func(tmp_path / "second", "import sys, json; print(json.dumps(sys.path))").stdout)
    added = [
        path
        for path in seen
        if path.startswith(source) and not path.startswith(os.path.join(source, "brimful_inside", "bootstrap"))
    ]
    already = [path for path in sys.path if path.startswith(source)]
    assert set(added) <= set(already)  # an editable install puts it there; the bootstrap does not


def test_a_hidden_sitecustomize_runs_as_it_would_without_us(run_trial, tmp_path, bootstrap):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import builtins; builtins.theirs = 'was here'")
    trial = run_trial(
        "import sitecustomize; print(theirs, sitecustomize.__file__)",
        env={"PYTHONPATH": f"{bootstrap}{os.pathsep}{tmp_path / 'theirs'}"},
    )
    assert trial.stdout.split() == ["was", "here", str(tmp_path / "theirs" / "sitecustomize.py")]
    assert roles(trial) == ["rank"]


def test_orders_that_cannot_be_read_leave_a_reason_and_the_script_alone(run_trial):
    trial = run_trial("print('fine')", version=99)
    assert trial.stdout == "fine\n" and trial.exit_code == 0
    (reason,) = trial.folder.glob("probe-error-*.txt")
    assert "wire version 99" in reason.read_text()


def test_an_error_of_ours_while_installing_leaves_a_reason_and_the_script_alone(run_trial):
    trial = run_trial("import sys\nsys.modules['brimful_inside.probe.probe'] = None\n" + STEPS + "print('fine')")
    assert trial.stdout == "fine\n" and trial.exit_code == 0
    (reason,) = trial.folder.glob("probe-error-*.txt")
    assert "brimful_inside.probe.probe" in reason.read_text()


def test_workers_of_a_loader_forked_and_spawned_say_that_they_are_workers(run_trial):
    trial = run_trial(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            data = TensorDataset(torch.arange(8.))
            for how in ("fork", "spawn"):
                for batch in DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context=how):
                    pass
        """
    )
    assert trial.exit_code == 0
    assert sorted(r for r in roles(trial)) == ["rank", "worker", "worker", "worker"]  # the third is spawn's resource tracker
    assert [r["ended"] for r in trial.reports] == ["script_ended"]


@pytest.mark.heavy
def test_torchrun_is_a_launcher_and_its_children_are_ranks(run_trial):
    trial = run_trial(STEPS, through=("-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29641"))
    assert trial.exit_code == 0
    assert sorted(roles(trial)) == ["launcher", "rank", "rank"]
    assert [(r["rank"], r["world_size"], r["steps"]) for r in trial.reports] == [(0, 2, 2), (1, 2, 2)]


@pytest.mark.heavy
def test_accelerate_launch_is_a_launcher(run_trial):
    trial = run_trial(STEPS, through=("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"))
    assert trial.exit_code == 0
    assert sorted(roles(trial)) == ["launcher", "rank"]
    assert trial.report["steps"] == 2
