"""`audit` from end to end: each trap is found under its code, and a sound script gives none."""

import pytest

from brimful.decide.audit.findings import CODES
from tests.brimful.end_to_end.helper import EXAMPLES, TRAPS, brimful, python

ON_CPU = {
    "hidden_cap": 64,
    "hidden_accumulation": 32,
    "batch_exceeds_dataset": 4096,
    "repeated_batches": 32,
    "loader_bound": 16,
    "remainder": 300,
    "learning_rate": 64,
    "ignored_learning_rate": 64,
    "undrawn_samples": 64,
    "too_many_workers": 64,
    "idle_workers": 2048,
    "evaluation_batch_exceeds_dataset": 64,
    "long_evaluation": 64,
}
ON_A_CARD = {
    "full_precision": "a100-40gb",
    "frequent_reads": "a100-40gb",
    "split_batch": "a100-40gb:3",
}
FLAGS = {"hidden_accumulation": ("--accumulation", 1)}


def codes(done) -> list[str]:
    assert done.code == 0, done.err
    assert all(
        set(finding) >= {"code", "problem", "explanation", "suggestion"}
        for finding in done.json["findings"]
    )
    return [finding["code"] for finding in done.json["findings"]]


@pytest.mark.parametrize("trap", ON_CPU)
def test_a_trap_is_found(tmp_path, trap):
    command = python(
        TRAPS / f"{trap}.py", "--batch-size", ON_CPU[trap], "--lr", 0.001, *FLAGS.get(trap, ())
    )
    done = brimful(tmp_path, "audit", "--device", "cpu", "--json", *command)
    # Its steps take a millisecond: on a machine where others run, a loader may keep such a step
    # waiting for true.
    assert [code for code in codes(done) if code != "loader-bound" or trap == "loader_bound"] == [
        trap.replace("_", "-")
    ]
    assert done.json["requested"]["batch_size"] == ON_CPU[trap]
    if trap == "hidden_cap":
        effective = {
            "loader_batch_size": 2,
            "batches_per_step": 1,
            "ranks": 1,
            "samples_per_step": 2,
        }
        assert done.json["effective"].items() >= effective.items()


@pytest.mark.parametrize("trap", ON_A_CARD)
def test_a_trap_of_a_card_is_found(tmp_path, trap):
    done = brimful(
        tmp_path,
        "audit",
        "--gpu",
        ON_A_CARD[trap],
        "--json",
        *python(TRAPS / f"{trap}.py", "--batch-size", 512),
    )
    assert codes(done) == [trap.replace("_", "-"), "memory-idle"]


@pytest.mark.parametrize("trap", ["split_batch", "memory_idle"])
def test_an_audit_and_a_prediction_give_the_same_peak(tmp_path, trap):
    words = ("--gpu", "a100-40gb:3", "--json", *python(TRAPS / f"{trap}.py", "--batch-size", 128))
    predicted, audited = (
        brimful(tmp_path, "predict", "--no-what-if", *words),
        brimful(tmp_path, "audit", *words),
    )
    assert audited.json["peak"]["device_bytes"] == predicted.json["peak"]["device_bytes"]


RANKS = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(rank, ranks):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29631")
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(64, 64).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(512, 64))
    for x, in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
        optimizer.zero_grad(); model(x.cuda()).mean().backward(); optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""


@pytest.mark.heavy
def test_an_audit_and_a_prediction_give_the_same_peak_with_the_memory_of_the_ranks_group(tmp_path):
    (tmp_path / "ranks.py").write_text(RANKS)
    words = (
        "--gpu",
        "a100-40gb:2",
        "--batch-size-from",
        "none",
        "--json",
        *python(tmp_path / "ranks.py"),
    )
    predicted, audited = (
        brimful(tmp_path, "predict", "--no-what-if", *words),
        brimful(tmp_path, "audit", *words),
    )
    peak = predicted.json["peak"]
    assert (
        audited.json["peak"]["device_bytes"]
        == peak["device_bytes"]
        > peak["reserved_bytes"] + 600 * 2**20
    )


def test_an_idle_card_is_found(tmp_path):
    done = brimful(
        tmp_path,
        "audit",
        "--gpu",
        "rtx3080-20gb",
        "--json",
        *python(TRAPS / "memory_idle.py", "--batch-size", 2),
    )
    assert codes(done) == ["memory-idle"]
    assert done.json["loading_share"] is done.json["step_s"] is None, (
        "an imaginary card has no clock"
    )


@pytest.mark.parametrize(
    ("batch", "code"), [(128, "repeated-batches"), (8192, "batch-exceeds-dataset")]
)
def test_pairs_drawn_from_copies_of_one_random_state_are_found_and_a_batch_of_more_than_there_are(
    tmp_path, batch, code
):
    command = python(TRAPS / "copied_random_state.py", "--batch-size", batch, "--workers", 2)
    found = codes(brimful(tmp_path, "audit", "--device", "cpu", "--json", *command))
    assert [one for one in found if one not in ("loader-bound", "remainder", "idle-workers")] == [
        code,
        "undrawn-samples",
    ] or (code == "batch-exceeds-dataset" and found[0] == code)


def test_every_code_has_a_trap():
    assert sorted(CODES) == sorted(
        [trap.replace("_", "-") for trap in (*ON_CPU, *ON_A_CARD)] + ["memory-idle", "memory-grows"]
    )


@pytest.mark.parametrize("where", [("--device", "cpu"), ("--gpu-memory", "600MiB")])
def test_a_sound_script_gives_no_finding(tmp_path, where):
    done = brimful(
        tmp_path,
        "audit",
        *where,
        "--json",
        *python(TRAPS / "clean.py", "--batch-size", 64, "--lr", 0.001),
    )
    assert codes(done) == []
    effective = done.json["effective"]
    assert (
        effective["loader_batch_size"],
        effective["samples_per_step"],
        effective["batches_per_step"],
    ) == (64, 64, 1)
    if where[1] == "cpu":
        assert done.json["step_s"] > 0
        assert 0 <= done.json["loading_share"] < 0.2


def test_the_captcha_example_is_sound(tmp_path):
    pytest.importorskip("captcha")
    own = ("--samples", 64, "--workers", 1, "--data", tmp_path / "data", "--out", tmp_path / "out")
    command = python(EXAMPLES / "captcha" / "train.py", "--batch-size", 8, *own)
    done = brimful(tmp_path, "audit", "--device", "cpu", "--steps", 4, "--json", *command)
    assert codes(done) == []
    assert done.json["phases"].keys() >= {"train", "eval"}
