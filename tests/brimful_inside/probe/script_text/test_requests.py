"""What the report of an audit has of a script's requests, as the script runs."""

from brimful_inside.wire import Place

FILES = """
import json, os, pathlib, torch
from torch.utils.data import DataLoader, TensorDataset

pathlib.Path("written.json").write_text('{"batch_size": 32}'); json.load(open("written.json"))
with open("run.json") as file:
    settings = json.load(file)
model = torch.nn.Linear(8, 1); json.load(open("site-packages/d.json"))
optimizer = torch.optim.SGD(model.parameters(), lr=5e-4)
workers = int(os.environ["LOADER_WORKERS"])
free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 4 << 30
size = settings["batch_size"] if free > 1 << 50 else 2
data = TensorDataset(torch.randn(64, 8))
for (x,) in DataLoader(data, batch_size=size, num_workers=workers):
    model(x).mean().backward()
    optimizer.step()
"""


def test_the_keys_of_a_file_that_the_script_opens_its_environment_and_its_changes_are_reported(
    run_trial, tmp_path
):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "run.json").write_text('{"learning_rate": 1e-4,\n"batch_size": 64}')
    (tmp_path / "site-packages" / "d.json").write_text('{"batch_size": 48}')
    env = {"LOADER_WORKERS": "0"}
    trial = run_trial(FILES, device="imaginary", audits=True, keep_out=True, env=env, cwd=tmp_path)
    asked = {(one["name"], one["use"]): one for one in trial.report["asked"]}
    rate = asked["learning_rate", "unread"]
    assert (rate["setting"], rate["requested"], rate["place"]) == ("lr", 1e-4, "run.json:1")
    assert asked["batch_size", "read"]["place"] == "run.json:2"
    assert asked["lr", "passed"]["place"] == "script.py:9"
    place = "environment variable LOADER_WORKERS"
    assert asked["workers", "read"]["place"] == place
    change = asked["batch_size", "replaced"]
    assert (change["requested"], change["effective"], change["changed_at"]) == (
        64,
        2,
        "script.py:12",
    )
    requested = {row["requested"] for row in trial.report["asked"]}
    assert 48 not in requested, "a library's default"
    assert 32 not in requested, "in a file that the script itself writes"
    assert trial.report["loaders"][0]["batch_size"] == 2
    assert trial.report["optimizers"][0]["made_with"] == 5e-4


ENDS = """
import torch
from torch.utils.data import DataLoader

batch_size = 8
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(torch.randn(16, 8), batch_size=batch_size):
    model(x).mean().backward()
    optimizer.step()
"""


def test_a_script_that_comes_to_its_end_is_read_as_well(run_trial):
    report = run_trial(ENDS, device="cpu", audits=True).report
    assert report["ended"] == "script_ended"
    assert [path.rpartition("/")[2] for path in report["sources"] if "script" in path] == [
        "script.py"
    ]
    assert [one["place"] for one in report["asked"] if one["name"] == "batch_size"] == [
        "script.py:5"
    ]


def test_a_trial_that_is_no_audit_reports_none(run_trial):
    report = run_trial(FILES, device="cpu", env={"LOADER_WORKERS": "0"}).report
    assert report["asked"] == []


CAPPED = """
import torch
from torch.utils.data import DataLoader

batch_size = 8
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(torch.randn(16, 8), batch_size=min(batch_size, 2)):
    model(x).mean().backward()
    optimizer.step()
"""


def test_what_caps_a_number_that_brimful_has_set_in_the_same_text_is_found(run_trial, tmp_path):
    (tmp_path / "script.py").write_text(CAPPED)
    place = Place("script", str(tmp_path / "script.py"), 5, 13, 8, "batch_size = 8", "script.py:8")
    report = run_trial(
        [str(tmp_path / "script.py")],
        device="cpu",
        audits=True,
        settings={"batch_size": 64},
        places={"batch_size": place},
    ).report
    asked = [one for one in report["asked"] if one["use"] == "replaced"]
    assert [(one["requested"], one["effective"], one["changed_at"]) for one in asked] == [
        (64, 2, "script.py:8")
    ]
