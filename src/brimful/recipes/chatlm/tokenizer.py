"""The tokenizer: byte-level BPE trained on the data, or any that AutoTokenizer reads."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from brimful.errors import UsageError
from brimful.recipes.cache import Say, lock
from brimful.recipes.chatlm.options import DataOptions
from brimful.recipes.chatlm.rows import Rows, digest

PADDING, END = "<|pad|>", "<|end|>"
SAMPLED_ROWS = 200_000  # that a tokenizer learns from: some 200 MB of text. Assumed: more merges nothing else
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # else it warns of loader workers, which do not tokenize


def tokenizer_for(options: DataOptions, folder: Path, say: Say) -> Any:
    """The one asked for, or one trained on the data and kept in `folder`. Any number of processes may ask: one trains."""
    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer)
    path = folder / f"tokenizer-{digest(options.data, options.columns, options.vocab_size)}"
    if not path.is_dir():
        with lock(path, "training", say):
            if not path.is_dir():
                say(f"Training a tokenizer of up to {options.vocab_size:,} tokens on the data.")
                partial = Path(f"{path}.partial")
                train_tokenizer(Rows(options.data, options), options.vocab_size).save_pretrained(partial)
                partial.rename(path)
    return load_tokenizer(path)


def train_tokenizer(rows: Iterable[tuple[str, str]], vocabulary: int) -> PreTrainedTokenizerFast:
    """Of all bytes, so that no text is unknown to it. Fewer tokens come of data in which nothing more repeats."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PADDING, END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts(_sampled(rows)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PADDING, eos_token=END)


def _sampled(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Some of all rows, each with the same chance (Vitter 1985, algorithm R), so that memory does not grow with the data."""
    kept: list[tuple[str, str]] = []
    chance = random.Random(0)
    for number, row in enumerate(rows):
        if number < SAMPLED_ROWS:
            kept.append(row)
        elif (place := chance.randrange(number + 1)) < SAMPLED_ROWS:
            kept[place] = row
    return kept


def _texts(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for prompt, response in rows:
        yield prompt
        yield response


def load_tokenizer(folder: Path) -> Any:
    """Raises UsageError where there is none, or where it has no token for padding or for the end."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever Transformers raises of a folder that holds something else
        raise UsageError(
            f"--tokenizer {folder}: no tokenizer can be read from there ({str(error).splitlines()[0]}).",
            suggestion="Name a folder with tokenizer.json and tokenizer_config.json, or leave it out to train one.",
        ) from error
    missing = [name for name in ("pad_token", "eos_token") if getattr(tokenizer, name) is None]
    if missing:
        raise UsageError(
            f"The tokenizer in {folder} has no {' and no '.join(missing)}.",
            "Answers end with the one, and batches are filled up with the other.",
            "Name them in its tokenizer_config.json.",
        )
    return tokenizer


def encode(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Tokens without any that were not in the text; a text that spells a special token out is text."""
    found = tokenizer(texts, add_special_tokens=False, split_special_tokens=True, return_attention_mask=False, verbose=False)
    return found["input_ids"]


def fingerprint(tokenizer: Any) -> str:
    """Of all that decides its tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = backend.to_str() if backend is not None else str(sorted(tokenizer.get_vocab().items()))
    return hashlib.blake2b(f"{content}{tokenizer.pad_token}{tokenizer.eos_token}".encode(), digest_size=8).hexdigest()
