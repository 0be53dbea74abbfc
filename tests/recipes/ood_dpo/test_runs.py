"""What all experiments of a sweep are computed by: as many threads as the engine would take."""

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("rdkit")
pytest.importorskip("sklearn")

from brimful.measure import host
from brimful_train.config import Config
from recipes.ood_dpo import runs
from recipes.ood_dpo.runs import Settings, set_up_host
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions, HeadOptions, SweepOptions


def start(out: Path, busy: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The threads of a start beside so many busy cores."""
    monkeypatch.setattr(host, "busy_cores", lambda: busy)
    monkeypatch.setattr(runs, "set_host_allocator", lambda *_: None)
    torch.set_num_threads(4)
    config = Config(out=out, device="cpu")
    set_up_host(Settings(SweepOptions(), DatasetOptions(), EncoderOptions(), HeadOptions(), config))
    return torch.get_num_threads()


@pytest.mark.usefixtures("four_cores")
def test_a_sweep_takes_the_cores_that_are_idle_and_as_many_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert start(tmp_path / "one", 3, monkeypatch) == 1
    assert "4 cores, 3 busy with other work" in capsys.readouterr().err
    assert start(tmp_path / "one", 0, monkeypatch) == 1
    assert "as before the checkpoint" in capsys.readouterr().err
    assert start(tmp_path / "other", 0, monkeypatch) == 4, "another folder is another sweep"


@pytest.mark.usefixtures("four_cores")
def test_a_number_that_the_user_gave_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert start(tmp_path, 2, monkeypatch) == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert start(tmp_path, 2, monkeypatch) == 4
    assert json.loads((tmp_path / "threads.json").read_text()) == {"threads": 4, "cores": 4}
