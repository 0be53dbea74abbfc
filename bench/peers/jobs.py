"""The trainings that the peers find batch sizes for: each a model and samples, one loop for all.

A model is given a batch by name and returns {"loss": ...}, as Transformers' models do; its samples
are made when they are read. Weights are new ones, from configurations. Of the recipes these are
the networks and losses; the loop is the one of this bench, as a peer brings its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
import transformers  # whose parts are loaded where they are used
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, default_collate

Sample = dict[str, torch.Tensor]
WORDS = 4000
SIDE, BOXES = 320, 8  # of YOLO's images
GIVEN: list[int] = []  # the batch sizes that the networks of this process were given
STEPS = 3  # of an epoch in which all batches are alike


@dataclass(frozen=True)
class Job:
    model: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], Sample]
    memory: str  # of the card
    collate: Callable[[Sequence[Sample]], Sample] = default_collate
    epoch: int | None = None  # samples; None: batches are alike, and a few steps show all
    start: int = 512  # the batch size that peers go down from
    vision: bool = False  # its network needs the other environment

    def data(self) -> Dataset:
        return Samples(self.sample, self.epoch or 40_000)

    def loader(self, batch_size: int, shuffle: bool = True) -> DataLoader:
        return DataLoader(
            self.data(), batch_size, shuffle=shuffle, collate_fn=self.collate, drop_last=True
        )

    def steps(self, batch_size: int) -> int:
        """Of a training that shows whether the size fits: a whole epoch where batches differ."""
        return max(1, self.epoch // batch_size) if self.epoch else STEPS


class Samples(Dataset):
    def __init__(self, sample: Callable[[torch.Generator], Sample], count: int) -> None:
        self.sample, self.count = sample, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Sample:
        return self.sample(torch.Generator().manual_seed(number))


def train(job: Job, batch_size: int, seed: int = 0, steps: int | None = None) -> int:
    """The loop that every peer's is like: AdamW, no clipping, the loss kept until the next. Gives
    the batch size back."""
    torch.manual_seed(seed)
    model = job.model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in islice(job.loader(batch_size), steps or job.steps(batch_size)):
        loss = model(**{name: value.cuda() for name, value in batch.items()})["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return batch_size


class Losing(nn.Module):
    """A network that is given inputs by name, with a loss of what it returns."""

    def __init__(self, network: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        GIVEN.append(len(next(iter(batch.values()))))
        batch.pop("num_items_in_batch", None)  # which Transformers' Trainer adds
        return {"loss": self.loss(self.network, **batch)}


def _own_loss(network: nn.Module, **batch: torch.Tensor) -> torch.Tensor:
    return network(**batch).loss


def _number(source: torch.Generator, most: int, shape: tuple[int, ...] = ()) -> torch.Tensor:
    return torch.randint(1, most, shape, generator=source)


def _image(side: int, classes: int) -> Callable[[torch.Generator], Sample]:
    def sample(source: torch.Generator) -> Sample:
        return {"pixel_values": torch.zeros(3, side, side), "labels": _number(source, classes)}

    return sample


def _text(length: int) -> Callable[[torch.Generator], Sample]:
    def sample(source: torch.Generator) -> Sample:
        words = _number(source, WORDS, (length,))
        return {"input_ids": words, "labels": words}

    return sample


def _resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
        num_labels=100,
    )
    return Losing(transformers.ResNetForImageClassification(config), _own_loss)


def _vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=160,
        num_labels=100,
    )
    return Losing(transformers.ViTForImageClassification(config), _own_loss)


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=256, n_embd=256, n_layer=4, n_head=4, use_cache=False
    )
    return Losing(transformers.GPT2LMHeadModel(config), _own_loss)


def _lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model

    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=4,
        num_attention_heads=8,
        use_cache=False,
    )
    adapted = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return Losing(get_peft_model(transformers.LlamaForCausalLM(config), adapted), _own_loss)


class _Lstm(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(words))[0])


def _next_word(network: nn.Module, words: torch.Tensor) -> torch.Tensor:
    logits = network(words[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)


def _padded(samples: Sequence[Sample], filling: dict[str, int]) -> Sample:
    return {
        name: pad_sequence([sample[name] for sample in samples], True, filling.get(name, 0))
        for name in samples[0]
    }


def _uneven_text(source: torch.Generator) -> Sample:
    return {"words": _number(source, WORDS, (int(torch.randint(20, 257, (), generator=source)),))}


def _captcha() -> nn.Module:
    from recipes.captcha.model import Reader
    from recipes.captcha.recipe import loss

    return Losing(
        Reader(), lambda network, images, labels: loss(network, (images / 127.5 - 1, labels))
    )


def _captcha_sample(source: torch.Generator) -> Sample:
    return {
        "images": torch.zeros(1, 60, 160, dtype=torch.uint8),
        "labels": _number(source, 36, (4,)),
    }


def _chatlm() -> nn.Module:
    from recipes.chatlm.model import chat_model
    from recipes.chatlm.settings import ModelOptions

    def loss(network: nn.Module, **batch: torch.Tensor) -> torch.Tensor:
        total, count = network(**batch)
        return total / count

    return Losing(chat_model(ModelOptions(model="tiny"), WORDS, padding=0, end=1), loss)


def _dialogue(source: torch.Generator) -> Sample:
    prompt, answer = torch.randint(16, 193, (2,), generator=source).tolist()
    words = _number(source, WORDS, (prompt,))
    return {
        "input_ids": words,
        "attention_mask": torch.ones_like(words),
        "labels": _number(source, WORDS, (answer,)),
    }


def _ood_dpo() -> nn.Module:
    from recipes.ood_dpo.head import EnergyHead
    from recipes.ood_dpo.loss import head_loss
    from recipes.ood_dpo.settings import HeadOptions

    of_energies = head_loss(HeadOptions())

    def loss(network: nn.Module, inside: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
        return of_energies(network(inside), network(outside))

    return Losing(EnergyHead(hidden=4096), loss)


class _Pairwise(nn.Module):
    """Scores every sample against every other by a small network: memory grows with the square."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, width))
        self.score = nn.Linear(width, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = self.body(features)
        return self.score(F.relu(inner[:, None] + inner[None])).squeeze(-1)


def _all_pairs(network: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    alike = (labels[:, None] == labels[None]).float()
    return F.binary_cross_entropy_with_logits(network(features), alike)


class _Detector(nn.Module):
    """A convolutional grid, and for each target its distance from what each place predicts."""

    def __init__(self, widths: Sequence[int] = (16, 32, 64, 96)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels, out in zip((3, *widths), widths, strict=False):
            layers += [nn.Conv2d(channels, out, 3, 2, 1), nn.GroupNorm(8, out), nn.ReLU()]
        self.grid = nn.Sequential(*layers, nn.Conv2d(widths[-1], 14, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.grid(images).flatten(2).transpose(1, 2)  # (batch, places, 4 sides + 10 scores)


def _matched(
    network: nn.Module, images: torch.Tensor, boxes: torch.Tensor, owners: torch.Tensor
) -> torch.Tensor:
    theirs = network(images)[owners]  # (targets, places, 14)
    costs = (theirs[..., :4] - boxes[:, None]).abs().sum(-1) + theirs[..., 4:].logsumexp(-1)
    return (costs * costs.softmax(-1)).sum(-1).mean()


def _scene(source: torch.Generator) -> Sample:
    count = int(torch.randint(1, 25, (), generator=source))
    return {"images": torch.zeros(3, 256, 256), "boxes": torch.rand(count, 4, generator=source)}


def _scenes(samples: Sequence[Sample]) -> Sample:
    counts = torch.tensor([len(sample["boxes"]) for sample in samples])
    return {
        "images": torch.stack([sample["images"] for sample in samples]),
        "boxes": torch.cat([sample["boxes"] for sample in samples]),
        "owners": torch.arange(len(samples)).repeat_interleave(counts),
    }


def _yolo() -> nn.Module:
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    network = DetectionModel("yolov8n.yaml", verbose=False)
    network.args = get_cfg()
    return Losing(network, lambda network, **batch: network.loss(batch)[0].sum())


def _boxed(source: torch.Generator) -> Sample:
    boxes = torch.rand(BOXES, 4, generator=source) / 2
    return {"img": torch.zeros(3, SIDE, SIDE), "cls": torch.zeros(BOXES, 1), "bboxes": boxes}


def _all_boxed(samples: Sequence[Sample]) -> Sample:
    return {
        "img": torch.stack([sample["img"] for sample in samples]),
        "cls": torch.cat([sample["cls"] for sample in samples]),
        "bboxes": torch.cat([sample["bboxes"] for sample in samples]),
        "batch_idx": torch.arange(len(samples), dtype=torch.float).repeat_interleave(BOXES),
    }


JOBS = {
    "captcha": Job(_captcha, _captcha_sample, "1.5GiB"),
    "chatlm": Job(
        _chatlm, _dialogue, "1.5GiB", partial(_padded, filling={"labels": -100}), epoch=1500
    ),
    "ood_dpo": Job(
        _ood_dpo,
        lambda _: {"inside": torch.zeros(512), "outside": torch.zeros(512)},
        "1.5GiB",
        start=16_384,
    ),
    "resnet": Job(_resnet, _image(160, 100), "1.5GiB"),
    "vit": Job(_vit, _image(160, 100), "1.5GiB"),
    "gpt2": Job(_gpt2, _text(256), "1.5GiB"),
    "lstm": Job(
        lambda: Losing(_Lstm(), _next_word),
        _uneven_text,
        "1.5GiB",
        partial(_padded, filling={}),
        epoch=1500,
    ),
    "detection": Job(lambda: Losing(_Detector(), _matched), _scene, "1.5GiB", _scenes, epoch=1500),
    "pairwise": Job(
        lambda: Losing(_Pairwise(), _all_pairs),
        lambda source: {"features": torch.zeros(256), "labels": _number(source, 10)},
        "1.5GiB",
        start=4096,
    ),
    "lora": Job(_lora, _text(256), "1.5GiB"),
    "yolo": Job(_yolo, _boxed, "1.5GiB", _all_boxed, vision=True),
}
