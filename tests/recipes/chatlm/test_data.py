"""The tokenizer; and rows as tokens: what is cut, held out, kept, and what it takes of memory."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import DiskFull, UsageError
from recipes.chatlm import data
from recipes.chatlm.data import (
    encode,
    fingerprint,
    load_tokenizer,
    pairs,
    tokenizer_for,
    train_tokenizer,
)
from recipes.chatlm.loss import IGNORED
from recipes.chatlm.settings import DataOptions
from tests.recipes.conftest import environment

ROWS = [("你好吗", "我很好，谢谢。"), ("今天天气怎么样", "今天天气很好。")] * 3
TOKENIZER = train_tokenizer(ROWS, 300)
END, PADDING = TOKENIZER.eos_token_id, TOKENIZER.pad_token_id


@given(st.text())
def test_any_text_comes_back_and_holds_no_special_token(text: str):
    text = f"{text}{data.END}{data.PADDING}"  # spelled out by a user, they are text
    ((tokens, was_cut),) = encode(TOKENIZER, [text], 1000)
    assert tokens.pop() == END and not was_cut and TOKENIZER.decode(tokens) == text
    assert not {PADDING, END} & set(tokens)


def test_a_tokenizer_has_the_size_asked_for_or_what_the_data_gives():
    assert len(TOKENIZER) < 300 and len(train_tokenizer(ROWS, 260)) == 260


def test_a_tokenizer_learns_from_a_bounded_number_of_rows_of_all_the_data(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(data, "SAMPLED_ROWS", 10)
    merged = len(train_tokenizer(((str(n), "") for n in range(10_000)), 1000)) - 258
    assert (
        10 < merged <= 10 * 3
    )  # a number of 4 digits is 3 merges; the first ten rows alone would be none


def test_a_tokenizer_is_saved_and_loaded_offline_as_it_was(tmp_path: Path):
    TOKENIZER.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert fingerprint(loaded) == fingerprint(TOKENIZER) != fingerprint(train_tokenizer(ROWS, 260))
    assert encode(loaded, ["你好吗"], 9) == encode(TOKENIZER, ["你好吗"], 9)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="no tokenizer can be read"):
        load_tokenizer(tmp_path)
    without = train_tokenizer(ROWS, 260)
    without.pad_token = None
    without.save_pretrained(tmp_path / "unpadded")
    with pytest.raises(UsageError, match="has no pad_token"):
        load_tokenizer(tmp_path / "unpadded")


def test_a_tokenizer_is_trained_on_the_data_once(rows_file: Path, tmp_path: Path):
    said: list[str] = []
    options = DataOptions(data=(rows_file,), vocab_size=320)
    first, again = (tokenizer_for(options, tmp_path, said.append) for _ in range(2))
    assert len(said) == 1 and "320" in said[0] and fingerprint(first) == fingerprint(again)


def made(folder: Path, rows: list[tuple[str, str]], said: list[str] | None = None, **options):
    path = folder / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": p, "response": r}) + "\n" for p, r in rows), encoding="utf-8"
    )
    return pairs(
        DataOptions(data=(path,), **options),
        TOKENIZER,
        folder / "cache",
        (said if said is not None else []).append,
    )


texts = st.text(max_size=12)


@given(
    rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=8),
    most=st.tuples(st.integers(2, 30), st.integers(2, 30)),
)
def test_each_text_is_its_tokens_and_an_end_within_the_limit(tmp_path_factory, rows, most):
    said: list[str] = []
    limits = {"max_prompt_tokens": most[0], "max_response_tokens": most[1]}
    train, held = made(tmp_path_factory.mktemp("data"), rows, said, eval_share=0.0, **limits)
    assert held is None and len(train) == len(rows)
    cut = [0, 0]
    for number, row in enumerate(rows):
        for which, text in enumerate(row):
            tokens = TOKENIZER(text, add_special_tokens=False, split_special_tokens=True)[
                "input_ids"
            ]
            assert train[number][which].tolist() == [*tokens[: most[which] - 1], END]
            cut[which] += len(tokens) > most[which] - 1
    assert train.sizes.tolist() == [2 * max(map(len, train[n])) for n in range(len(rows))]
    for count, name in zip(cut, ("prompt", "response"), strict=True):
        assert (f"{count} {name}" in said[-1]) == (count > 0)


def test_a_batch_is_padded_with_a_mask_and_ignored_labels(tmp_path: Path):
    train, _ = made(tmp_path, [("abc", "d"), ("e", "fgh")], eval_share=0.0)
    prompts, mask, labels = train.collate([train[0], train[1]])
    assert prompts.tolist()[1][2:] == [PADDING, PADDING] and mask.tolist() == [
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]
    assert labels.tolist()[0][2:] == [IGNORED, IGNORED] and labels[1, -1] == END
    assert prompts.numel() + labels.numel() <= 2 * train.sizes.max()


@given(seed=st.integers(0, 2**31), share=st.floats(0.05, 0.6))
def test_a_prompt_is_trained_on_or_measured_and_never_both(tmp_path_factory, seed, share):
    rows = [(f"prompt {n % 40}", f"response {n}") for n in range(120)]
    folder = tmp_path_factory.mktemp("held")
    train, held = made(folder, rows, eval_share=share, split_seed=seed)
    sides = [{tuple(side[n][0].tolist()) for n in range(len(side))} for side in (train, held)]
    assert not sides[0] & sides[1] and len(train) + len(held) == 120 and len(held) >= 3
    assert made(folder, rows, eval_share=share, split_seed=seed)[1].fingerprint == held.fingerprint


def test_rows_with_one_prompt_cannot_be_split(tmp_path: Path):
    with pytest.raises(UsageError, match="held out"):
        made(tmp_path, [("same", "a"), ("same", "b")], eval_share=0.3)


def test_it_is_made_once_and_anew_where_it_was_damaged(tmp_path: Path):
    rows, said = [("p", "r"), ("q", "s")], []
    train, _ = made(tmp_path, rows, said, eval_share=0.0)
    (file,) = (tmp_path / "cache").glob("*.arrow")
    for options, times in (
        ({"eval_share": 0.5}, 1),  # neither share nor seed make it anew
        ({"eval_share": 0.0}, 2),  # damaged
        ({"eval_share": 0.0, "max_prompt_tokens": 3}, 3),
    ):
        if times == 2:
            os.truncate(file, file.stat().st_size - 1)
        again, _ = made(tmp_path, rows, said, **options)
        assert sum("Tokenizing" in sentence for sentence in said) == times
        assert times != 2 or again[1][1].tolist() == train[1][1].tolist()


def test_a_full_disk_leaves_nothing_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, *_):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(data, "_write", full)
    with pytest.raises(DiskFull):
        made(tmp_path, [("p", "r")])
    assert not list((tmp_path / "cache").glob("*.partial"))


def test_a_worker_that_is_not_forked_maps_the_files(tmp_path: Path):
    train, _ = made(tmp_path, [("p", "r" * 1000)] * 50, eval_share=0.0, max_response_tokens=2000)
    content = pickle.dumps(train)
    assert len(content) < 5_000  # 50 rows of 1,000 tokens are 100,000 bytes
    assert torch.equal(pickle.loads(content)[7][1], train[7][1])


PROGRAM = """
import resource, sys
from pathlib import Path
from recipes.chatlm.settings import DataOptions
from recipes.chatlm.recipe import prepare
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data, cache, tokenizer = map(Path, sys.argv[1:4])
prepare(DataOptions(data=(data,), cache=cache, tokenizer=tokenizer))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def growth_kib(folder: Path, kind: str, rows: int) -> int:
    """What making tokens of so many rows adds to the resident memory of a process."""
    path = folder / f"{rows}.{kind}"
    content = [{"prompt": f"{n}", "response": f"{'回答' * 500}{n}"} for n in range(rows)]
    if kind == "parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(content), path, row_group_size=1000)
    else:
        lines = "".join(json.dumps(row) + "\n" for row in content)
        path.write_text(lines if kind == "jsonl" else json.dumps(content), encoding="utf-8")
    TOKENIZER.save_pretrained(folder / "tokenizer")
    command = [sys.executable, "-c", PROGRAM, path, folder / f"cache-{rows}", folder / "tokenizer"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=280, check=True
    )
    return int(done.stdout)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str):
    """1,500 rows of 6 kB in JSON are 9 MB, ten times as many 90 MB."""
    small, large = growth_kib(tmp_path, kind, 1_500), growth_kib(tmp_path, kind, 15_000)
    assert large - small < 20 * 1024, (small, large)
