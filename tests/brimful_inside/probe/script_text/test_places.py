"""Trials of scripts without a flag: one finds where the loader's number comes from, a second one
sets it there.
"""

import functools
import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from brimful_inside.wire import Place
from tests.brimful_inside.helper import Trial, contents

#: What every script needs besides its loaders.
COMMON = """
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

data, test = TensorDataset(torch.randn(400, 6)), TensorDataset(torch.randn(100, 6))

def train(loader, evaluation=(), width=6):
    model = torch.nn.Linear(6, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        model.train()
        for x, in loader:
            optimizer.zero_grad(); model(x).mean().backward(); optimizer.step()
        model.eval()
        with torch.no_grad():
            for x, in evaluation: model(x)
"""
SCRIPTS = {
    "a module-level number and an evaluation of its own": """
        from common import *
        batch = 40
        train(DataLoader(data, batch_size=batch, drop_last=True),
              DataLoader(test, batch_size=50))
        print("steps", len(data) // batch)
    """,
    "loaders made by one function, anew in each epoch": """
        from common import *
        def make(which, size): return DataLoader(which, size)
        size = int("40")
        for epoch in range(2):
            train(make(data, size),
                  make(test, size))
    """,
    "batches of a BatchSampler": """
        from common import *
        n = int("40")
        train(DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), n, True)))
    """,
    "a number from an imported file": """
        from common import *
        from config import BATCH
        train(DataLoader(data, batch_size=BATCH),
              DataLoader(test, BATCH))
    """,
    "ranks that the script spawns": """
        from common import *
        import torch.multiprocessing as mp
        batch = 40
        def rank(index, given, folder):
            import os, torch.distributed as dist
            os.environ.update(RANK=str(index), WORLD_SIZE="2")
            meeting = f"file://{folder}/meeting"
            dist.init_process_group("gloo", init_method=meeting, rank=index, world_size=2)
            train(DataLoader(data, batch_size=batch // dist.get_world_size()))
            print("given", given)
            dist.destroy_process_group()
        if __name__ == "__main__":
            import tempfile
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(rank, args=(batch, folder), nprocs=2)
    """,
}
#: (kind and line of the best place, training batches at 24, evaluation batches at 24)
EXPECTED = {
    "a module-level number and an evaluation of its own": ("script", "script.py", 2, 24, 50),
    "loaders made by one function, anew in each epoch": ("loader", "script.py", 2, 24, 40),
    "batches of a BatchSampler": ("loader", "script.py", 3, 24, None),
    "a number from an imported file": ("script", "config.py", 2, 24, 24),
    "ranks that the script spawns": ("script", "script.py", 3, 12, None),
}


def sizes(report: dict, role: str) -> set[int]:
    return {one["batch_size"] for one in report["loaders"] if one["role"] == role}


def run_with(run_trial, tmp_path: Path, place: Place, **settings: int) -> Trial:
    """Another trial, of a script whose setting stands at this place."""
    for path in tmp_path.glob("trial/wire-*"):
        path.unlink()
    places = dict.fromkeys(settings, place)
    return run_trial(["script.py"], settings=settings, places=places, steps=2)


def folder_with(tmp_path: Path, source: str) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    (work / "common.py").write_text(COMMON)
    (work / "config.py").write_text("HIDDEN = 40\nBATCH = 40\n")
    (work / "script.py").write_text(textwrap.dedent(source).lstrip("\n"))
    return work


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_place_is_found_and_the_number_set_there(run_trial, tmp_path, name):
    run_trial = functools.partial(run_trial, fork="spawns" not in name)
    kind, file, line, training, evaluation = EXPECTED[name]
    work = folder_with(tmp_path, SCRIPTS[name])
    before = contents(work)
    found = run_trial(["script.py"], find_places="script", steps=2)
    report = next(one for one in found.reports if one["steps"])
    train = next(one for one in report["loaders"] if one["role"] == "train")
    places = [Place(**place) for place in train["places"]]
    assert [one.kind for one in places] == (
        ["script", "loader"] if kind == "script" else ["loader"]
    ), found.stderr
    assert (Path(places[0].file).name, places[0].line, places[0].number) == (file, line, 40)
    assert places[0].limit is None
    for place in places:
        others = [
            p["calls"] for one in report["loaders"] if one["role"] == "eval" for p in one["places"]
        ]
        alone = Place(
            **{**vars(place), "not_calls": [calls for calls in others if calls != place.calls]}
        )
        done = run_with(run_trial, tmp_path, alone, batch_size=24)
        shown = next(one for one in done.reports if one["steps"])
        assert sizes(shown, "train") == {training if place.kind == "script" else 24}, done.stderr
        if evaluation is not None:
            assert sizes(shown, "eval") == {
                evaluation if place.kind == kind else max(evaluation, 40)
            }
        if "steps" in found.stdout:
            assert done.stdout == ("steps 16\n" if place.kind == "script" else "steps 10\n")
        if "given" in found.stdout:
            assert "given 24" in done.stdout or place.kind == "loader"
    assert contents(work) == before


KINDS = {
    "map": "DataLoader(data, 40)",
    "positional": "DataLoader(data, 40, False, None, None, 0)",
    "BatchSampler": "DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 40, True))",
    "stream": "DataLoader(Stream(), 40)",
    "random": "DataLoader(Random(), 40)",
}
LOADERS = """
from common import *
import random
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self): return iter(data)
class Random(torch.utils.data.Dataset):
    def __init__(self): self.held = random.Random(0)
    def __len__(self): return 400
    def __getitem__(self, index): return data[self.held.randrange(400)]
evaluation = DataLoader(test, batch_size=50)
train(KIND,
      evaluation)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_workers_are_set_where_the_training_loader_is_made_and_nowhere_else(
    run_trial, tmp_path, kind
):
    """Each worker would give a whole stream, and have a copy of a random state that the data set
    holds.
    """
    folder_with(tmp_path, LOADERS.replace("KIND", KINDS[kind]))
    found = run_trial(["script.py"], find_places="workers", steps=2)
    train = next(one for one in found.report["loaders"] if one["role"] == "train")
    assert train["places"] == [], "a batch size stays a plain number"
    if kind in ("stream", "random"):
        assert train["workers_place"] is None
        return
    place = Place(**train["workers_place"])
    assert (place.kind, place.loader, place.number) == ("loader", "script.py:10", 0)
    done = run_with(run_trial, tmp_path, place, num_workers=1)
    assert {one["role"]: one["workers"] for one in done.report["loaders"]} == {
        "train": 1,
        "eval": 0,
    }, done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("framework", ["transformers", "lightning"])
def test_a_framework_that_makes_its_own_loaders_gets_the_number_too(run_trial, tmp_path, framework):
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not here")
    trainer = """
        from common import *
        from transformers import Trainer, TrainingArguments
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(6, 2)
            def forward(self, x=None, labels=None):
                return {"loss": self.linear(x).mean(), "logits": self.linear(x)}
        rows = [{"x": torch.randn(6), "labels": torch.tensor(1)} for _ in range(400)]
        arguments = TrainingArguments("out", per_device_train_batch_size=40,
                                      per_device_eval_batch_size=50, report_to=[],
                                      num_train_epochs=1, use_cpu=True,
                                      eval_strategy="epoch", save_strategy="no")
        Trainer(Net(), arguments, train_dataset=rows, eval_dataset=rows[:100]).train()
    """
    module = """
        from common import *
        import lightning as L
        class Data(L.LightningDataModule):
            def __init__(self, batch_size=40):
                super().__init__()
                self.save_hyperparameters()
            def train_dataloader(self): return DataLoader(data, batch_size=self.hparams.batch_size)
            def val_dataloader(self): return DataLoader(test, batch_size=50)
        class Net(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(6, 2)
            def training_step(self, batch, index): return self.linear(batch[0]).mean()
            def validation_step(self, batch, index): self.linear(batch[0])
            def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
        trainer = L.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
        trainer.fit(Net(), datamodule=Data())
    """
    folder_with(tmp_path, trainer if framework == "transformers" else module)
    found = run_trial(["script.py"], find_places="script", steps=2)
    train = next(one for one in found.report["loaders"] if one["role"] == "train")
    places = [Place(**place) for place in train["places"]]
    assert [one.kind for one in places] == ["script", "loader"], found.stderr
    assert places[0].number == 40 and "batch_size=40" in places[0].text
    others = [
        p["calls"]
        for one in found.report["loaders"]
        if one["role"] == "eval"
        for p in one["places"]
    ]
    for place in places:
        alone = Place(
            **{**vars(place), "not_calls": [calls for calls in others if calls != place.calls]}
        )
        done = run_with(run_trial, tmp_path, alone, batch_size=24)
        assert sizes(done.report, "train") == {24} and sizes(done.report, "eval") == {50}, (
            done.stderr
        )


FILES = {
    "settings.json": ('{"epochs": 3,\n "train": {"per_device_train_batch_size": 40}}', (2, 42)),
    "settings.yaml": ("# ö batch_size: 40\nvocabulary: 40\nbatch_size: 40  # a pass\n", (3, 12)),
    "settings.toml": ("[data]\nbatch_size = 40\neval_batch_size = 40\n", (2, 13)),
    "override.py": ("batch_size = 40\n", (1, 13)),
}
READERS = {
    ".json": "import json; settings = json.load(open(path))['train']",
    ".yaml": "import yaml, pathlib; settings = yaml.safe_load(pathlib.Path(path).read_text())",
    ".toml": "import tomllib\nwith open(path, 'rb') as file: settings = tomllib.load(file)['data']",
    ".py": "settings = {}; exec(open(path, encoding='utf-8').read(), settings)",
}


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_a_number_in_a_file_of_settings_is_found_and_set_there(run_trial, tmp_path, name, loads):
    text, place_in_text = FILES[name]
    script = f"""
from common import *
path = {name!r}
{READERS[Path(name).suffix]}
size = next(int(value) for key, value in settings.items() if key.endswith("batch_size"))
"""
    if loads:
        script += "train(DataLoader(data, batch_size=size))\n"
    else:  # as nanoGPT draws its batches
        script += "train([(data.tensors[0][:size],) for _ in range(9)])\n"
    work = folder_with(tmp_path, "pass")
    (work / "script.py").write_text(script)
    (work / name).write_text(text)
    before = contents(work)
    report = run_trial(["script.py"], find_places="script", steps=2).report
    places = report["loaders"][0]["places"] if loads else report["places"]
    place = Place(**places[0])
    assert (place.kind, Path(place.file).name, place.line, place.column, place.number) == (
        *("script", name),
        *place_in_text,
        40,
    )
    done = run_with(run_trial, tmp_path, place, batch_size=24)
    assert done.report["samples_per_step"][1:3] == [24, 24]
    assert contents(work) == before

    (work / name).write_text(text.replace("40", "41"))
    changed = run_with(run_trial, tmp_path, place, batch_size=24)
    assert changed.report["samples_per_step"][1:3] == [41, 41]
    assert any("has no 40 any more" in note for note in changed.report["notes"])


def test_a_place_that_the_script_limits_has_the_limit_and_the_line(run_trial, tmp_path):
    folder_with(
        tmp_path,
        """
        from common import *
        from config import BATCH
        batch = min(BATCH, 8)
        train(DataLoader(data, batch_size=batch))
        """,
    )
    found = run_trial(["script.py"], find_places="script", steps=2)
    (train,) = (one for one in found.reports[0]["loaders"] if one["role"] == "train")
    in_text, at_loader = (Place(**place) for place in train["places"])
    assert (in_text.kind, in_text.number, in_text.limit) == ("script", 8, 40)
    assert in_text.limited_at == "script.py:3 (`batch = min(BATCH, 8)`)"
    assert (at_loader.kind, at_loader.limit) == ("loader", None)


def test_a_loader_that_never_calls_torchs_constructor_has_its_place_where_it_is_made(tmp_path):
    """As torchdata's StatefulDataLoader."""
    script = """
from torch.utils.data import DataLoader
from brimful_inside.probe.script_text import places

TEXT = '''
class Own(DataLoader):
    def __init__(
        self, dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, num_workers=0
    ):
        self.batch_size = batch_size
'''
exec(TEXT)
before = Own
places.find_in_loaders(["batch_size"])
exec(TEXT)
places.patch_constructor(Own)
for loaders in (before, Own):
    print([place.number for place in places.places_of_loader(loaders([], 4).batch_size)])
"""
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[4]\n[4]\n"
