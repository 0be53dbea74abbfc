"""What an audit sees of a training on a card: reads, formats, split batches; and the time of an
evaluation's batches.
"""

import pytest

SCRIPT = """
import contextlib, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how = sys.argv[1:]
device = "cuda" if torch.cuda.is_available() else "cpu"
if "tf32" in how:
    torch.set_float32_matmul_precision("high")
model = nn.Sequential(nn.Conv1d(1, 1, 3, padding=1), nn.Flatten(), nn.Linear(8, 1)).to(device)
weights = list(model.parameters())
if "sharded" in how:
    from torch.distributed.fsdp import MixedPrecisionPolicy
    MixedPrecisionPolicy()
    MixedPrecisionPolicy(param_dtype=torch.bfloat16)
if "masters" in how:
    weights = [weight.detach().clone().requires_grad_() for weight in weights]
optimizer = torch.optim.SGD(weights, lr=0.1)
others = [torch.optim.SGD(model.parameters(), lr=0.1)] if "two" in how else []
module = nn.DataParallel(model) if "split" in how else model
context = torch.autocast("cuda", torch.bfloat16) if "autocast" in how else contextlib.nullcontext()
data = TensorDataset(torch.randn(64, 1, 8))
for (x,) in DataLoader(data, batch_size=8):
    with context:
        loss = module(x.to(device)).mean()
    loss.backward()
    optimizer.step()
    for other in others:
        other.step()
    optimizer.zero_grad()
    if "reads" in how:
        print(loss.item(), float(loss))
        x[0, 0, 0].item()  # lies on the host
model.eval()
with torch.no_grad():
    for (x,) in DataLoader(data, batch_size=4):
        model(x.to(device)).mean().item()
"""


def audited(run_trial, *how, device="imaginary", **config):
    return run_trial(SCRIPT, argv=how, device=device, audits=True, eval_batches=5, **config).report


def test_lines_that_read_from_the_card_are_counted_in_training_alone(run_trial):
    read = audited(run_trial, "reads", "tf32")
    assert list(read["device_reads"].values()) == [2 * read["steps"]]
    assert next(iter(read["device_reads"])).startswith("script.py:")
    assert read["precision"]["tf32"] is True
    assert len(read["loaders"]) == 2, (
        "the loader that looks at some batches of the script's own is none of the script's"
    )
    assert all(len(set(one["draws"]["checksums"])) == 4 for one in read["loaders"])


@pytest.mark.parametrize(
    ("how", "autocast"),
    [((), None), (("autocast",), "bfloat16"), (("sharded",), "bfloat16")],
)
def test_the_format_of_a_training_is_seen(run_trial, how, autocast):
    seen = audited(run_trial, *how)
    assert seen["precision"] == {
        "capability": [8, 0],
        "weights": ["float32"],
        "autocast": autocast,
        "tf32": False,
        "convolutions": pytest.approx(3 / 13),
    }
    assert seen["device_reads"] == {} and seen["split_over"] == 1


@pytest.mark.parametrize(
    ("words", "cards", "precision"),
    [(["masters"], 1, None), (["masters", "two"], 1, ["float32"])],
    ids=["copies that an optimizer steps", "weights of every optimizer"],
)
def test_the_weights_say_the_format_and_copies_of_them_say_nothing(
    run_trial, words, cards, precision
):
    seen = audited(run_trial, *words)["precision"]
    assert (seen and seen["weights"]) == precision


def test_cards_that_share_a_batch_are_counted(run_trial):
    assert audited(run_trial, "split", cards=2)["split_over"] == 2


def test_on_a_cpu_a_batch_of_an_evaluation_has_a_time_and_nothing_is_read_from_a_card(run_trial):
    seen = audited(run_trial, "reads", device="cpu")
    assert seen["precision"] is None and seen["device_reads"] == {}
    times = {one["role"]: one["batch_s"] for one in seen["loaders"]}
    assert times["train"] is None and times["eval"] > 0
