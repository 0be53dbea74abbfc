"""Rows become tokens once: memory-mapped files that all later runs read.

    <cache>/<digest>/tokens     uint16 or uint32: prompt, end, response, end, prompt ...
    <cache>/<digest>/offsets    int64: where each text begins, and the end
    <cache>/<digest>/prompts    uint64: a hash of each row's prompt, by which rows are held out
    <cache>/<digest>/facts.json

The digest is of the files' content, the tokenizer and the limits. One process makes the folder, named so once it is whole.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from brimful.errors import DiskFull, UsageError
from brimful.recipes.cache import Say, lock, unwritable
from brimful.recipes.chatlm.loss import IGNORED
from brimful.recipes.chatlm.options import DataOptions
from brimful.recipes.chatlm.rows import Rows, digest
from brimful.recipes.chatlm.tokenizer import encode, fingerprint
from brimful.units import counted

_ROWS_AT_ONCE = 512
_FILES = (("tokens", None), ("offsets", np.int64), ("prompts", np.uint64))


@dataclass(frozen=True)
class Corpus:
    """Rows as tokens. `cut_prompts` and `cut_responses` were longer than their limits; `bad` rows were left out."""

    folder: Path
    dtype: str
    rows: int
    tokens: int
    cut_prompts: int
    cut_responses: int
    bad: int

    @functools.cached_property
    def texts(self) -> tuple[np.ndarray, np.ndarray]:
        """All tokens, and the offsets of texts in them; mapped, not read."""
        return self.mapped("tokens", self.dtype), self.mapped("offsets", np.int64)

    def mapped(self, name: str, dtype: Any) -> np.ndarray:
        return np.memmap(self.folder / name, dtype=dtype, mode="r")


class Pairs(Dataset):
    """Rows of a corpus: (prompt, response), int64 tensors that end with the end token. `collate` pads them to a batch."""

    def __init__(self, corpus: Corpus, rows: np.ndarray, padding: int) -> None:
        self._corpus, self._rows, self._padding = corpus, rows, padding

    def __reduce__(self) -> Any:  # a worker that is not forked maps the files itself
        return Pairs, (dataclasses.replace(self._corpus), self._rows, self._padding)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fingerprint(self) -> str:
        """Of which rows of which corpus they are."""
        return f"{self._corpus.folder.name}-{zlib.crc32(self._rows.tobytes()):08x}"

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, offsets = self._corpus.texts
        start, middle, stop = offsets[2 * self._rows[index] :][:3]
        return tuple(torch.from_numpy(tokens[a:b].astype(np.int64)) for a, b in ((start, middle), (middle, stop)))  # type: ignore[return-value]

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """2 × the longer text, so that prompts and responses of a batch, padded, have at most samples × largest size tokens."""
        lengths = np.diff(self._corpus.texts[1]).astype(np.int32).reshape(-1, 2)
        return 2 * lengths.max(1)[self._rows]

    def collate(self, samples: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prompts (batch, longest), their mask, and labels (batch, longest) with IGNORED where they are padding."""
        prompts, responses = zip(*samples, strict=True)
        prompts, mask = pad(prompts, self._padding)
        return prompts, mask, pad(responses, IGNORED)[0]


def pad(texts: Sequence[torch.Tensor], value: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(texts, longest) filled up with `value`, and 1 where it was not."""
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
    return torch.nn.utils.rnn.pad_sequence(list(texts), batch_first=True, padding_value=value), mask


def corpora(options: DataOptions, tokenizer: Any, folder: Path, say: Say) -> tuple[Pairs, Pairs | None]:
    """(training, held-out). A prompt is on one side alone, unless --eval-data has rows that the data has too."""
    corpus = _corpus(options.data, options, tokenizer, folder, say)
    everything = np.arange(corpus.rows)
    padding = tokenizer.pad_token_id
    if options.eval_data:
        held = _corpus(options.eval_data, options, tokenizer, folder, say)
        return Pairs(corpus, everything, padding), Pairs(held, np.arange(held.rows), padding)
    if not options.eval_share:
        return Pairs(corpus, everything, padding), None
    is_held = _held_out(corpus.mapped("prompts", np.uint64), options)
    return Pairs(corpus, everything[~is_held], padding), Pairs(corpus, everything[is_held], padding)


def _held_out(prompts: np.ndarray, options: DataOptions) -> np.ndarray:
    """Which rows, by a hash of prompt and seed: the same ones however the files are ordered."""
    mixed = (prompts ^ np.uint64(options.split_seed)) * np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    held = mixed < np.uint64(options.eval_share * 2**63) * np.uint64(2)
    held = held if held.any() else mixed == mixed.min()
    if held.all():
        raise UsageError(
            f"All {len(held):,} rows would be held out.",
            "They have too few prompts that differ, and a prompt is never both trained on and measured.",
            "Give held-out rows with --eval-data, or --eval-share 0.",
        )
    return held


def _corpus(paths: Sequence[Path], options: DataOptions, tokenizer: Any, folder: Path, say: Say) -> Corpus:
    limits = (options.max_prompt_tokens, options.max_response_tokens)
    path = folder / digest(paths, options.columns, fingerprint(tokenizer), limits)
    corpus = _whole(path)
    if corpus is None:
        with lock(path, "tokenizing", say):
            corpus = _whole(path)  # another process may have made it meanwhile
            if corpus is None:
                corpus = _tokenized(Rows(paths, options), path, limits, tokenizer, say)
    _say_of(corpus, limits, say)
    return corpus


def _whole(path: Path) -> Corpus | None:
    """The corpus in `path`, if each file has its full length."""
    try:
        corpus = Corpus(path, **json.loads((path / "facts.json").read_text(encoding="utf-8")))
        lengths = {
            "tokens": corpus.tokens * np.dtype(corpus.dtype).itemsize,
            "offsets": 16 * corpus.rows + 8,
            "prompts": 8 * corpus.rows,
        }
        return corpus if all((path / name).stat().st_size == size for name, size in lengths.items()) else None
    except (OSError, ValueError, TypeError):
        return None


def _tokenized(rows: Rows, path: Path, limits: tuple[int, int], tokenizer: Any, say: Say) -> Corpus:
    say("Tokenizing the data: once, for all later runs.")
    partial = Path(f"{path}.partial")
    try:
        for leftover in (partial, path):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir()
        corpus = _write(rows, partial, limits, tokenizer)
        content = {name: value for name, value in dataclasses.asdict(corpus).items() if name != "folder"}
        (partial / "facts.json").write_text(json.dumps(content), encoding="utf-8")
        partial.rename(path)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        if DiskFull.caused(error):
            raise DiskFull(
                str(path.parent), "nothing of this data", suggestion="Free some space, or choose another --cache."
            ) from error
        raise unwritable(path.parent, error) from error
    return Corpus(path, **content)


def _write(rows: Rows, folder: Path, limits: tuple[int, int], tokenizer: Any) -> Corpus:
    end, dtype = tokenizer.eos_token_id, np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32
    count, at, cut = 0, 0, np.zeros(2, dtype=np.int64)
    with (
        (folder / "tokens").open("wb") as tokens,
        (folder / "offsets").open("wb") as offsets,
        (folder / "prompts").open("wb") as prompts,
    ):
        offsets.write(np.int64(0).tobytes())
        left = iter(rows)
        while some := list(islice(left, _ROWS_AT_ONCE)):
            texts = encode(tokenizer, [text for pair in some for text in pair])
            lengths = np.array([len(text) for text in texts]).reshape(-1, 2)
            most = np.array(limits) - 1  # the end token counts
            cut += (lengths > most).sum(0)
            ends = at + np.cumsum(np.minimum(lengths, most).reshape(-1) + 1)
            for number, text in enumerate(texts):
                tokens.write(np.array([*text[: most[number % 2]], end], dtype=dtype).tobytes())
            offsets.write(ends.astype(np.int64).tobytes())
            prompts.write(b"".join(_hash(prompt) for prompt, _ in some))
            count, at = count + len(some), int(ends[-1])
    return Corpus(folder, np.dtype(dtype).name, count, at, int(cut[0]), int(cut[1]), rows.bad)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _say_of(corpus: Corpus, limits: tuple[int, int], say: Say) -> None:
    parts = [f"{counted(corpus.rows, 'row')} of {counted(corpus.tokens, 'token')}"]
    cut = ((corpus.cut_prompts, "prompt", limits[0]), (corpus.cut_responses, "response", limits[1]))
    parts += [f"{counted(count, name)} longer than {limit:,} tokens cut" for count, name, limit in cut if count]
    parts += [f"{counted(corpus.bad, 'bad row')} left out"] if corpus.bad else []
    say(f"Data: {'; '.join(parts)}.")
