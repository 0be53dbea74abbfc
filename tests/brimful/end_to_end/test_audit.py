"""`audit` from end to end: each trap is found under its code, and a sound script gives none."""

import pytest

from brimful.decide.audit.findings import CODES
from brimful.show.console import render_text
from tests.brimful.end_to_end.helper import EXAMPLES, TRAPS, brimful, python

ON_CPU = {
    "hidden_cap": 64,
    "hidden_accumulation": 32,
    "batch_exceeds_dataset": 4096,
    "repeated_batches": 32,
    "loader_bound": 16,
    "remainder": 300,
    "several_loaders": 16,
    "learning_rate": 64,
    "ignored_learning_rate": 64,
    "undrawn_samples": 64,
    "too_many_workers": 64,
    "idle_workers": 2048,
    "replaced_workers": 64,
    "evaluation_batch_exceeds_dataset": 64,
    "long_evaluation": 64,
}
ON_A_CARD = {
    "full_precision": ("a100-40gb", 512),
    "frequent_reads": ("a100-40gb", 512),
    "split_batch": ("a100-40gb:3", 512),
    "memory_idle": ("rtx3080-20gb", 2),
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
    card, size = ON_A_CARD[trap]
    command = python(TRAPS / f"{trap}.py", "--batch-size", size)
    done = brimful(tmp_path, "audit", "--gpu", card, "--json", *command)
    assert codes(done) == [*dict.fromkeys((trap.replace("_", "-"), "memory-idle"))]
    assert done.json["loading_share"] is done.json["step_s"] is None, (
        "an imaginary card has no clock"
    )


def test_a_peak_over_the_card_is_found_first(tmp_path):
    command = python(TRAPS / "clean.py", "--batch-size", 64, "--lr", 0.001)
    done = brimful(tmp_path, "audit", "--gpu-memory", "400MiB", "--json", *command)
    assert codes(done) == ["does-not-fit"]


FROZEN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
body = nn.Sequential(nn.Conv2d(3, 64, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).cuda()
head = nn.Linear(64, 5).cuda()
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for x, in DataLoader(TensorDataset(torch.randn(64, 3, 32, 32)), batch_size=8):
    optimizer.zero_grad(); head(body(x.cuda()).detach()).mean().backward(); optimizer.step()
"""


@pytest.mark.parametrize("allowed", [True, False])
def test_float32_is_found_by_the_work_of_a_step_not_by_weights_that_train(tmp_path, allowed):
    setting = f"import torch; torch.backends.cudnn.allow_tf32 = {allowed}\n"
    (tmp_path / "frozen.py").write_text(setting + FROZEN)
    command = python(tmp_path / "frozen.py")
    found = codes(brimful(tmp_path, "audit", "--gpu", "rtx3090", "--json", *command))
    assert ("full-precision" in found) is not allowed


RANKS = """
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def main(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
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
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(main, args=(torch.cuda.device_count(), port), nprocs=torch.cuda.device_count())
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


def test_pairs_drawn_from_copies_of_one_random_state_are_found(tmp_path):
    command = python(TRAPS / "copied_random_state.py", "--batch-size", 128, "--workers", 2)
    found = codes(brimful(tmp_path, "audit", "--device", "cpu", "--json", *command))
    others = ("loader-bound", "remainder", "idle-workers")
    assert [code for code in found if code not in others] == ["repeated-batches", "undrawn-samples"]


def test_every_code_has_a_trap():
    assert sorted(CODES) == sorted(
        [trap.replace("_", "-") for trap in (*ON_CPU, *ON_A_CARD)]
        + ["memory-grows", "does-not-fit", "ignored-setting"]
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


# As in a repository of others: settings in a module of their own, and a trainer that knows better.
CONFIG = """
hidden = 64
batch_size_per_gpu = 64
accumulation = 4
learning_rate = 1e-4
"""
TRAINER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import config as cfg


def make_loader(data, cfg):
    # the first author's card had 4 GB
    return DataLoader(data, batch_size=min(cfg.batch_size_per_gpu, 2), shuffle=True)


class Trainer:
    def __init__(self, cfg, model):
        self.accumulation = max(cfg.accumulation, 16)
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
        self.scheduler = None
        print(f"learning rate {cfg.learning_rate}, batch {cfg.batch_size_per_gpu}")

    def train(self, loader):
        for step, (x, y) in enumerate(loader, 1):
            loss = nn.functional.mse_loss(self.model(x), y) / self.accumulation
            loss.backward()
            if step % self.accumulation == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                if self.scheduler is not None:
                    self.scheduler.step()


def main():
    torch.manual_seed(0)
    x = torch.randn(8192, cfg.hidden)
    model = nn.Sequential(nn.Linear(cfg.hidden, 1024), nn.ReLU(), nn.Linear(1024, 1))
    trainer = Trainer(cfg, model)
    trainer.train(make_loader(TensorDataset(x, x.mean(1, keepdim=True)), cfg))


if __name__ == "__main__":
    main()
"""


def audited(folder, trainer):
    (folder / "config.py").write_text(CONFIG)
    (folder / "sft.py").write_text(trainer)
    done = brimful(folder, "audit", "--device", "cpu", "--json", *python("sft.py"))
    assert done.code == 0, done.err
    findings = done.json["findings"]
    return done, [
        one for one in findings if one["code"] not in ("loader-bound", "too-many-workers")
    ]


def test_three_settings_of_a_module_that_the_trainer_overrides_are_named_with_both_places(tmp_path):
    done, findings = audited(tmp_path, TRAINER)
    assert [one["problem"] for one in findings] == [
        "sft.py:11 caps the batch size of 64 (config.py:3) at 2.",
        "sft.py:16 raises the accumulation of 4 (config.py:4) to 16.",
        "sft.py:18 takes a learning rate of 0.0005, and nothing reads the 0.0001 of config.py:5.",
    ]
    assert done.json["requested"] == {"batch_size": 64, "accumulation": 4, "lr": 1e-4}
    assert done.json["effective"]["loader_batch_size"] == 2
    assert {
        one["setting"]: (one["requested"], one["place"], one["effective"], one["changed_at"])
        for one in done.json["asked"]
    } == {
        "batch_size": (64, "config.py:3", 2, "sft.py:11"),
        "accumulation": (4, "config.py:4", 16, "sft.py:16"),
        "lr": (1e-4, "config.py:5", 5e-4, "sft.py:18"),
    }
    lines = render_text(done.record).splitlines()
    assert findings[0]["problem"] in lines[0]
    first_lines = " ".join(lines[1:5])
    assert all(f"Also: {finding['problem']}" in first_lines for finding in findings[1:3])
    begin = lines.index("What the command really does:") + 1
    assert "64 (config.py:3), in force 2 (sft.py:11)" in lines[begin]
    assert "4 (config.py:4), in force 16 (sft.py:16)" in lines[begin + 1]


def test_settings_of_a_module_that_are_in_force_are_requests_and_no_findings(tmp_path):
    sound = TRAINER.replace("min(cfg.batch_size_per_gpu, 2)", "cfg.batch_size_per_gpu")
    sound = sound.replace("max(cfg.accumulation, 16)", "cfg.accumulation")
    sound = sound.replace("lr=5e-4", "lr=cfg.learning_rate")
    warm_up = "torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: min(1, n / 100))"
    done, findings = audited(tmp_path, sound.replace("= None", f"= {warm_up}"))
    assert findings == []
    assert done.json["requested"] == {"batch_size": 64, "accumulation": 4, "lr": 1e-4}
    assert [one["place"] for one in done.json["asked"]] == [
        "config.py:3",
        "config.py:4",
        "config.py:5",
    ]


def test_a_schedule_that_replaces_the_learning_rate_of_a_module_is_found(tmp_path):
    schedule = "torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=5e-4, total_steps=999)"
    scheduled = TRAINER.replace("lr=5e-4", "lr=cfg.learning_rate").replace(
        "= None", f"= {schedule}"
    )
    _, findings = audited(tmp_path, scheduled)
    assert (
        "You asked for a learning rate of 0.0001 (config.py:5), and 0.0005 is in force"
        in (findings[-1]["problem"])
    )


def test_the_captcha_example_is_sound(tmp_path):
    pytest.importorskip("captcha")
    own = ("--samples", 64, "--workers", 1, "--data", tmp_path / "data", "--out", tmp_path / "out")
    command = python(EXAMPLES / "captcha" / "train.py", "--batch-size", 8, *own)
    done = brimful(tmp_path, "audit", "--device", "cpu", "--steps", 4, "--json", *command)
    assert codes(done) == []
    assert done.json["phases"].keys() >= {"train", "eval"}


REPLICAS = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(16, 4)
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(40))

    def forward(self, images):
        hidden = torch.relu(self.first(images))
        for layer in self.layers:
            hidden = hidden + torch.relu(layer(hidden))
        return self.last(hidden.mean((2, 3)))

sys.setswitchinterval(1e-6)  # threads change as often as they can
data = TensorDataset(torch.randn(768, 1, 8, 8), torch.randint(0, 4, (768,)))
model = nn.DataParallel(Net().cuda())
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for images, labels in DataLoader(data, batch_size=48, drop_last=True):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.float16):
        loss = nn.functional.cross_entropy(model(images.cuda()), labels.cuda())
    scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
"""


@pytest.mark.heavy
def test_replicas_in_threads_on_three_cards_are_audited_and_predicted_alike(tmp_path):
    (tmp_path / "replicas.py").write_text(REPLICAS)
    words = ("--gpu", "a100-40gb:3", "--json", *python(tmp_path / "replicas.py"))
    audited = brimful(tmp_path, "audit", *words, code=0).json
    predicted = brimful(tmp_path, "predict", "--no-what-if", *words, code=0).json
    assert audited["peak"]["reserved_bytes"] == predicted["peak"]["reserved_bytes"]
    assert predicted["largest_batch_size"] == 768
    assert "fails" not in str(predicted["warnings"])
