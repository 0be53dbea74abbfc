"""The loop of plain PyTorch that a chat model is trained with where nobody thought of memory:
beside it stands the recipe.

    python bench/chatlm_plain.py --data FILE --tokenizer FOLDER --cache FOLDER --batch-size 64

It does what ChatLM-mini-Chinese's own training loop does (model/dataset.py and model/trainer.py of
that repository): every text is filled up to one fixed length, Transformers' T5 computes the logits
of all positions, gradients are clipped at 1. The optimizer, its schedule and the tokens are the
recipe's, so that both do the same updates.
"""

import functools
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import T5ForConditionalGeneration, get_cosine_schedule_with_warmup

from bench import harness

IGNORED = -100


def fixed(
    samples: Sequence[tuple[torch.Tensor, torch.Tensor]], *, length: int, padding: int
) -> tuple[torch.Tensor, ...]:
    """Prompts, their mask, and labels, each (batch, length)."""
    prompts, responses = zip(*samples, strict=True)
    masks = (torch.ones_like(prompt) for prompt in prompts)
    return (
        _filled(prompts, length, padding),
        _filled(masks, length, 0),
        _filled(responses, length, IGNORED),
    )


def _filled(texts: Any, length: int, value: int) -> torch.Tensor:
    return torch.stack([F.pad(text, (0, length - len(text)), value=value) for text in texts])


def loader(pairs: Dataset, batch: int, length: int, padding: int) -> DataLoader:
    return DataLoader(
        pairs,
        batch,
        shuffle=True,
        collate_fn=functools.partial(fixed, length=length, padding=padding),
    )


def plain_loop(
    model: nn.Module,
    batches: DataLoader,
    *,
    lr: float,
    weight_decay: float,
    warm_up: int,
    updates: int,
    precision: str,
) -> Iterator[None]:
    """An update for each `next`, epoch after epoch, on the device of the model. `warm_up` and
    `updates` of the schedule.
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
    schedule = get_cosine_schedule_with_warmup(optimizer, warm_up, updates)
    model.train()
    while True:
        for prompts, mask, labels in batches:
            narrow = (
                torch.autocast(device.type, torch.bfloat16)
                if precision == "bf16"
                else nullcontext()
            )
            with narrow:
                loss = model(
                    input_ids=prompts.to(device),
                    attention_mask=mask.to(device),
                    labels=labels.to(device),
                    use_cache=False,
                ).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            yield


def twin(model: Any) -> T5ForConditionalGeneration:
    """Transformers' own network with the recipe's weights."""
    network = T5ForConditionalGeneration(model.config)
    network.load_state_dict(model.state_dict())
    return network


def main(
    *,
    data: Path,
    tokenizer: Path,
    cache: Path,
    model: str = "chatlm-0.2b",
    length: Annotated[int, "tokens that each prompt and each response is filled up to"] = 256,
    batch_size: int = 64,
    precision: Literal["fp32", "bf16"] = "bf16",
    updates: int = 1000,
) -> None:
    from recipes.chatlm.model import chat_model
    from recipes.chatlm.recipe import prepare
    from recipes.chatlm.settings import DataOptions, ModelOptions

    limits = {"max_prompt_tokens": length, "max_response_tokens": length, "eval_share": 0.0}
    words, pairs, _ = prepare(
        DataOptions(data=(data,), tokenizer=tokenizer, cache=cache, **limits)  # type: ignore
    )
    padding = words.pad_token_id
    network = twin(chat_model(ModelOptions(model), len(words), padding, words.eos_token_id))
    steps = plain_loop(
        network.to("cuda" if torch.cuda.is_available() else "cpu"),
        loader(pairs, batch_size, length, padding),
        lr=2e-4,
        weight_decay=0.01,
        warm_up=100,
        updates=updates,
        precision=precision,
    )
    for _ in range(updates):
        next(steps)


if __name__ == "__main__":
    harness.run(main)
