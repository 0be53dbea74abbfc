"""Rows become tokens once: a tokenizer, and an Arrow file that all later runs map into memory.

    <cache>/tokenizer-<digest>/   byte-level BPE, where one is trained
    <cache>/<digest>.arrow        prompt and response as tokens with their end, whether each was
    cut, a hash of the prompt

A digest is of all that decides the content: the data files' own, the tokenizer, the limits.
"""

import hashlib
import heapq
import os
import random
import zlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from pyarrow import ipc
from tokenizers import ByteLevelBPETokenizer, Tokenizer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from brimful.errors import UsageError
from brimful.units import counted
from recipes.chatlm.loss import IGNORED
from recipes.chatlm.rows import digest, read_rows
from recipes.chatlm.settings import DataOptions
from recipes.common.cache import Say, made_once

PADDING, END = "<|pad|>", "<|end|>"
# that a tokenizer learns from: some 200 MB of text. Assumed: more merges nothing else
SAMPLED_ROWS = 200_000
ROWS_AT_ONCE = 512  # that are tokenized
os.environ.setdefault(
    "TOKENIZERS_PARALLELISM", "true"
)  # else it warns of loader workers, which do not tokenize


def tokenizer_for(options: DataOptions, folder: Path, say: Say) -> Any:
    """The one asked for, or one trained on the data and kept in `folder`."""
    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer)
    path = folder / f"tokenizer-{digest(options.data, options.columns, options.vocab_size)}"

    def make(aside: Path) -> None:
        say(f"Training a tokenizer of up to {options.vocab_size:,} tokens on the data.")
        train_tokenizer(read_rows(options.data, options), options.vocab_size).save_pretrained(aside)

    made_once(path, "training", lambda _: path if path.is_dir() else None, make, say)
    return load_tokenizer(path)


def train_tokenizer(rows: Iterable[tuple[str, str]], vocabulary: int) -> PreTrainedTokenizerFast:
    """Of all bytes, so that no text is unknown to it. Fewer tokens come of data in which nothing
    more repeats.
    """
    chance = random.Random(0)
    sampled = heapq.nsmallest(
        SAMPLED_ROWS, rows, key=lambda _: chance.random()
    )  # memory does not grow with the data
    trained = ByteLevelBPETokenizer()
    texts = (text for row in sampled for text in row)
    trained.train_from_iterator(
        texts, vocabulary, min_frequency=0, show_progress=False, special_tokens=[PADDING, END]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(trained.to_str()), pad_token=PADDING, eos_token=END
    )


def load_tokenizer(folder: Path) -> Any:
    """Raises UsageError where there is none, or none with tokens for padding and for the end."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever Transformers raises of a folder that holds something else
        raise UsageError(
            f"--tokenizer {folder}: no tokenizer can be read from there "
            f"({str(error).splitlines()[0]}).",
            suggestion="Name a folder with tokenizer.json and tokenizer_config.json, or leave it "
            "out "
            "to "
            "train one.",
        ) from error
    for name in (
        "pad_token",
        "eos_token",
    ):  # batches are filled up with the one, and answers end with the other
        if getattr(tokenizer, name) is None:
            raise UsageError(
                f"The tokenizer in {folder} has no {name}.",
                suggestion="Name it in tokenizer_config.json.",
            )
    return tokenizer


def fingerprint(tokenizer: Any) -> str:
    """Of all that decides its tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = (
        backend.to_str() if backend is not None else str(sorted(tokenizer.get_vocab().items()))
    )
    return hashlib.blake2b(
        f"{content}{tokenizer.pad_token}{tokenizer.eos_token}".encode(), digest_size=8
    ).hexdigest()


def encode(tokenizer: Any, texts: Sequence[str], most: int) -> list[tuple[list[int], bool]]:
    """Of each text at most `most` tokens, the last one the end, and whether it was cut. Special
    tokens spelled out are text.
    """
    tokenized = tokenizer(
        list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False
    )["input_ids"]
    return [
        ([*tokens[: most - 1], tokenizer.eos_token_id], len(tokens) >= most) for tokens in tokenized
    ]


class Pairs(Dataset):
    """Rows of an Arrow file (all by default): (prompt, response), int64 tensors. `collate` pads
    them to a batch.
    """

    def __init__(self, path: Path, padding: int, rows: np.ndarray | None = None) -> None:
        table = _mapped(path)
        self._path, self._padding, self._columns = (
            path,
            padding,
            (table["prompt"], table["response"]),
        )
        self._rows = np.arange(len(table)) if rows is None else rows

    def __reduce__(self) -> Any:  # a worker that is not forked maps the file itself
        return Pairs, (self._path, self._padding, self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        row = int(self._rows[index])
        return tuple(
            torch.from_numpy(column[row].values.to_numpy().astype(np.int64))
            for column in self._columns
        )

    @property
    def fingerprint(self) -> str:
        """Of which rows of which file they are."""
        return f"{self._path.stem}-{zlib.crc32(self._rows.tobytes()):08x}"

    @property
    def sizes(self) -> np.ndarray:
        """2 × the longer text, so that prompts and responses of a batch, padded, have at most
        samples × largest size tokens.
        """
        return 2 * np.maximum(*map(_lengths, self._columns))[self._rows]

    def collate(
        self, samples: Sequence[tuple[torch.Tensor, ...]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prompts (batch, longest), their mask, and labels (batch, longest) with IGNORED where they
        are padding.
        """
        prompts, responses = zip(*samples, strict=True)
        return *pad(prompts, self._padding), pad(responses, IGNORED)[0]


def pad(texts: Sequence[torch.Tensor], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(texts, longest) filled up with `value`, and 1 where it was not."""
    mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return pad_sequence(list(texts), batch_first=True, padding_value=value), mask


def pairs(
    options: DataOptions, tokenizer: Any, folder: Path, say: Say
) -> tuple[Pairs, Pairs | None]:
    """(training, held-out). A prompt is on one side alone, unless --eval-data has rows that the
    data has too.
    """
    path, padding = _tokens(options.data, options, tokenizer, folder, say), tokenizer.pad_token_id
    if options.eval_data:
        return Pairs(path, padding), Pairs(
            _tokens(options.eval_data, options, tokenizer, folder, say), padding
        )
    if not options.eval_share:
        return Pairs(path, padding), None
    held = _held_out(_mapped(path)["prompt_hash"].to_numpy(), options)
    return Pairs(path, padding, np.flatnonzero(~held)), Pairs(path, padding, np.flatnonzero(held))


def _held_out(hashes: np.ndarray, options: DataOptions) -> np.ndarray:
    """Which rows, by the hash of the prompt and the seed: more rows change no one's side."""
    # multiply-shift hashing (Dietzfelbinger et al. 1997)
    factor = 2 * random.Random(options.split_seed).getrandbits(63) + 1
    mixed = hashes * np.uint64(factor)
    held = mixed < np.uint64(int(options.eval_share * 2**64))
    held = held if held.any() else mixed == mixed.min()
    if held.all():
        raise UsageError(
            f"All {len(held):,} rows would be held out.",
            "They have too few prompts that differ, and a prompt is never both trained on and "
            "measured.",
            "Give held-out rows with --eval-data, or --eval-share 0.",
        )
    return held


def _tokens(
    paths: Sequence[Path], options: DataOptions, tokenizer: Any, folder: Path, say: Say
) -> Path:
    """The Arrow file of some data files, written now if it is not there."""
    limits = {"prompt": options.max_prompt_tokens, "response": options.max_response_tokens}
    path = folder / f"{digest(paths, options.columns, fingerprint(tokenizer), limits)}.arrow"

    def make(aside: Path) -> None:
        say("Tokenizing the data: once, for all later runs.")
        _write(aside, read_rows(paths, options), tokenizer, limits)

    table = made_once(path, "tokenizing", lambda _: _whole(path), make, say)
    parts = [
        f"{counted(len(table), 'row')} of "
        f"{counted(sum(int(_lengths(table[name]).sum()) for name in limits), 'token')}"
    ]
    for name, most in limits.items():
        if cut := int(np.count_nonzero(table[f"{name}_cut"])):
            parts.append(f"{counted(cut, name)} longer than {most:,} tokens cut")
    say(f"Data: {'; '.join(parts)}.")
    return path


def _write(
    path: Path, rows: Iterable[tuple[str, str]], tokenizer: Any, limits: dict[str, int]
) -> None:
    number = pyarrow.uint16() if len(tokenizer) <= 1 << 16 else pyarrow.uint32()
    names = [(name, pyarrow.list_(number)) for name in limits] + [
        (f"{name}_cut", pyarrow.bool_()) for name in limits
    ]
    schema, left = pyarrow.schema([*names, ("prompt_hash", pyarrow.uint64())]), iter(rows)
    with path.open("wb") as file, ipc.new_file(file, schema) as writer:
        while some := list(islice(left, ROWS_AT_ONCE)):
            digests = [
                hashlib.blake2b(prompt.encode(), digest_size=8).digest() for prompt, _ in some
            ]
            columns: dict[str, Any] = {
                "prompt_hash": [int.from_bytes(digest, "little") for digest in digests]
            }
            for (name, most), texts in zip(limits.items(), zip(*some, strict=True), strict=True):
                columns[name], columns[f"{name}_cut"] = zip(
                    *encode(tokenizer, texts, most), strict=True
                )
            writer.write_batch(pyarrow.RecordBatch.from_pydict(columns, schema))


def _mapped(path: Path) -> pyarrow.Table:
    return ipc.open_file(pyarrow.py_buffer(np.memmap(path, mode="r"))).read_all()


def _whole(path: Path) -> pyarrow.Table | None:
    try:
        return _mapped(path)
    except (
        OSError,
        ValueError,
    ):  # Arrow's footer, which is its end, shows whether a file was cut off
        return None


def _lengths(column: Any) -> np.ndarray:
    return np.concatenate([chunk.value_lengths().to_numpy() for chunk in column.chunks])
