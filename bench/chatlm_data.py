"""The rows and tokenizers of bench/chatlm.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from examples import recipe_chatlm
from recipes.chatlm.data import train_tokenizer
from recipes.chatlm.rows import read_rows
from recipes.chatlm.settings import DataOptions

# of a long text: no tokenizer of so few rows makes fewer than 256 tokens of them
CHARACTERS = 2_000


def dialogues(folder: Path) -> Path:
    """The Chinese dialogues of the pinned wheel of chatterbot-corpus, as `make recipe-chatlm` reads
    them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wheel = recipe_chatlm.DIALOGUES.fetch(folder / "wheel", print)
    recipe_chatlm.write_rows(wheel, folder / "dialogues.jsonl")
    return folder / "dialogues.jsonl"


def rows_of(data: Path) -> list[tuple[str, str]]:
    return list(read_rows((data,), DataOptions()))


def tokenizer_in(folder: Path, data: Path, vocabulary: int, filled: bool = False) -> Path:
    """Trained on the rows. `filled`: few rows make few tokens, and tokens that no text has make up
    the number, for a model has a row of weights for each all the same."""
    tokenizer = train_tokenizer(rows_of(data), vocabulary)
    if filled:
        tokenizer.add_tokens(
            [f"<|filler {number}|>" for number in range(vocabulary - len(tokenizer))]
        )
    tokenizer.save_pretrained(folder)
    return folder


def long_rows(rows: Sequence[tuple[str, str]], path: Path, count: int) -> Path:
    """Rows that differ and whose two texts are longer than any limit of 256 tokens: many texts in
    one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            prompt, response = (_long([row[side] for row in rows], number) for side in (0, 1))
            file.write(
                json.dumps({"prompt": prompt, "response": response}, ensure_ascii=False) + "\n"
            )
    return path


def _long(texts: Sequence[str], start: int) -> str:
    long = str(start)
    for step in range(CHARACTERS):
        if len(long) >= CHARACTERS:
            break
        long += texts[(start + step) % len(texts)]
    return long
