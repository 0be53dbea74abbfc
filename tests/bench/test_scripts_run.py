"""Each light program of bench/scripts trains on the imaginary GPU: one trial of it, as `brimful
predict` would run it.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

from bench.run_scripts import prepare
from bench.scripts_table import PROGRAMS, Program
from brimful.command import parse
from brimful.measure.gpus import find_gpu
from brimful.measure.trial import failure_text, run_trial
from brimful.values import Device, Outcome, Trial, TrialKind

LIGHT = [program for program in PROGRAMS if program.light]


@pytest.mark.parametrize("program", LIGHT, ids=lambda program: program.key)
def test_a_light_program_runs_unmodified_on_the_imaginary_gpu(
    program: Program, tmp_path: Path, monkeypatch
):
    for name in program.needs:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    prepare(program, sys.executable, str(work))
    there = sorted(work.rglob("*"))
    device = Device("imaginary", program.gpu, find_gpu(program.gpu))
    command = parse(tuple(program.command(sys.executable)))
    trial = Trial(command, {"batch_size": program.batch_size}, device, TrialKind.TRACE)
    sample = run_trial(trial, tmp_path / "trial", tmp_path)
    assert sample.outcome is Outcome.COMPLETED, failure_text(sample, tmp_path)
    assert set(program.phases) <= set(sample.phases)
    assert {
        name for report in sample.reports for name in report.approximations
    } <= program.may_be_approximated
    assert sample.samples_per_step == program.samples_per_step
    train = sample.phases["train"]
    assert (
        train.allocated_bytes
        and train.reserved_bytes
        and train.allocated_bytes <= train.reserved_bytes
    )
    assert sorted(work.rglob("*")) == there, "a trial leaves no trace in the working folder"
