"""What would make it fit, done as it is recommended: the same command with the changes made runs,
and takes about as much.
"""

import pytest

from tests.brimful.end_to_end.helper import brimful, python, script

TRANSFORMER = """
import argparse
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--micro-batches", type=int, default=1)
parser.add_argument("--length", type=int, default=256)
parser.add_argument("--width", type=int, default=512)
for name in ("autocast", "checkpointing", "chunked", "fused", "sgd", "sharded"):
    parser.add_argument("--" + name, action="store_true")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, width, tokens=20_000):
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.layers = nn.ModuleList(Block(width) for _ in range(12))

    def forward(self, batch):
        x = self.embedding(batch)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.checkpointing else layer(x)
        x, y = x.flatten(0, 1), batch.flatten()
        if not args.chunked:
            return self.loss(x, y) / y.numel()
        parts = zip(x.chunk(8), y.chunk(8))
        return sum(checkpoint(self.loss, *part, use_reentrant=False) for part in parts) / y.numel()

    def loss(self, x, y):
        return nn.functional.cross_entropy(self.head(x), y, reduction="sum")


model = Model(args.width)
if args.sharded:
    torch.distributed.init_process_group("nccl")
    for layer in model.layers:
        torch.distributed.fsdp.fully_shard(layer)
    torch.distributed.fsdp.fully_shard(model)
model.cuda()
kind = torch.optim.SGD if args.sgd else torch.optim.AdamW
optimizer = kind(model.parameters(), lr=1e-3, fused=args.fused or None)
data = TensorDataset(torch.zeros(256, 1, dtype=torch.long).expand(-1, args.length))
for number, (batch,) in enumerate(DataLoader(data, batch_size=args.batch_size), 1):
    with torch.autocast("cuda", torch.bfloat16, enabled=args.autocast):
        loss = model(batch.cuda()) / args.micro_batches
    loss.backward()
    if number % args.micro_batches == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
CONF = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
FLAGS = {
    "mixed-precision": "--autocast",
    "chunked-loss": "--chunked",
    "gradient-checkpointing": "--checkpointing",
    "fused-optimizer": "--fused",
    "fsdp": "--sharded",
}


def ladder(tmp_path, budget, *words):
    """The changes that `predict` recommends, the last of which fits."""
    asked = ("predict", "--gpu", "rtx3070", "--budget", budget, "--json")
    found = brimful(tmp_path, *asked, *python(script(tmp_path, TRANSFORMER), *words), code=3)
    *_, last = remedies = found.json["what_if"]["remedies"]
    assert last["verdict"] == "fits" and remedies[0]["code"] == "expandable-segments"
    return [one["code"] for one in remedies[1:]], last


def fits_as_said(last, off, tmp_path, budget, *words, cards=1):
    """The command as it is recommended runs, and takes what was said of it; no larger batch size is
    looked for."""
    most = words[words.index("--batch-size") + 1]
    card = ("--gpu", "rtx3070") if cards == 1 else ("--gpu", f"rtx3070:{cards}", "--ranks", cards)
    asked = ("predict", *card, "--budget", budget, "--json", "--no-what-if")
    asked += ("--max-batch-size", most)
    command = python(script(tmp_path, TRANSFORMER), *words)
    own = brimful(tmp_path, *asked, *command, **CONF).json
    assert own["verdict"] == "fits"
    assert own["peak"]["device_bytes"] == pytest.approx(last["device_bytes"], rel=off)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("budget", "words", "codes", "off"),
    [
        ("1.5GiB", ("--length", 256, "--batch-size", 2), ["fused-optimizer"], 0.01),
        (
            "2GiB",
            ("--length", 8192, "--batch-size", 1),
            ["mixed-precision", "chunked-loss", "gradient-checkpointing"],
            0.03,
        ),
    ],
)
def test_changes_of_the_script_make_it_fit_and_take_what_was_said(
    tmp_path, budget, words, codes, off
):
    made, last = ladder(tmp_path, budget, *words)
    assert made == codes
    fits_as_said(last, off, tmp_path, budget, *words, *map(FLAGS.__getitem__, codes))


@pytest.mark.heavy
def test_micro_batches_make_it_fit_with_their_gradients_summed(tmp_path):
    (code,), last = ladder(tmp_path, "1.8GiB", "--batch-size", 16)
    parts = int(code.removeprefix("accumulation-"))
    words = ("--batch-size", 16 // parts, "--micro-batches", parts)
    fits_as_said(last, 0.05, tmp_path, "1.8GiB", *words)


@pytest.mark.heavy
def test_cards_that_share_the_model_make_it_fit(tmp_path):
    words = ("--batch-size", 1, "--width", 2048, "--sgd")
    (code,), last = ladder(tmp_path, "4.2GiB", *words)
    assert code == "fsdp" and last["what"] == "FSDP over 8 cards"
    fits_as_said(last, 0.12, tmp_path, "4.2GiB", *words, "--sharded", cards=8)
