"""What a queue is asked for, and what a submit script does where the command does not fit."""

import os
import shutil
import subprocess
import sys

import pytest

from brimful.units import GIB
from tests.brimful.end_to_end.helper import (
    TRAINING,
    brimful,
    environment,
    python,
    script,
    torchrun,
)


def test_standard_output_is_what_the_queue_reads_with_host_memory_of_a_real_trial(tmp_path):
    words = python(script(tmp_path), "--batch-size", 64)
    flags = ("--for", "slurm", "--gpu", "t4", "--batch-size-from", "none")
    done = brimful(tmp_path, "request", *flags, *words, code=0)
    lines = done.out.splitlines()
    assert all(line.startswith("#") for line in lines)
    assert "#SBATCH --gres=gpu:tesla_t4:1" in lines and "#SBATCH --nodes=1" in lines
    (memory,) = [line for line in lines if line.startswith("#SBATCH --mem=")]
    assert 3 < int(memory.partition("=")[2].removesuffix("G")) < 9
    assert "Record: " in done.err


@pytest.mark.heavy
def test_two_ranks_of_a_launcher_are_one_task_with_both_cards(tmp_path):
    text = TRAINING.replace(
        "torch.manual_seed(0)\n",
        'import os\ntorch.distributed.init_process_group("nccl")\n'
        "device = f\"cuda:{os.environ['LOCAL_RANK']}\"\ntorch.manual_seed(0)\n",
    )
    words = torchrun(script(tmp_path, text), "--batch-size", 64)
    found = brimful(
        tmp_path, "request", "--gpu", "t4:2", "--batch-size-from", "none", "--json", *words, code=0
    ).json
    assert (found["cards"], found["ranks"], found["tasks"], found["machines"]) == (2, 2, 1, 1)
    # a quiet machine measures how many workers keep up with the card, a busy one does not
    cores = found["cores"]
    if cores["source"] == "assumed":
        assert cores["value"] == 2
    else:
        assert cores["source"] == "predicted" and cores["value"] in (2, 4, 6, 8)
    assert cores["note"].startswith("one for each of 2 training processes")
    assert found["host_bytes"]["value"] > 6 * GIB and found["text"] is None
    assert found["schema"] and found["record"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(("memory", "code"), [("80GiB", 0), ("600MiB", 3)])
def test_a_submit_script_ends_with_3_before_it_trains_what_does_not_fit(tmp_path, memory, code):
    path = script(tmp_path)
    submit = tmp_path / "job.sh"
    command = f"{sys.executable} {path} --batch-size 64"
    flags = f"--gpu-memory {memory} --batch-size-from none --no-what-if"
    submit.write_text(f"brimful predict {flags} -- {command} || exit\ntouch trained\n")
    program = tmp_path / "bin" / "brimful"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m brimful "$@"\n')
    program.chmod(0o755)
    variables = environment(tmp_path / "home", PATH=f"{program.parent}:{os.environ['PATH']}")
    done = subprocess.run(["bash", str(submit)], cwd=tmp_path, env=variables, timeout=240)
    assert (done.returncode, (tmp_path / "trained").exists()) == (code, code == 0)
