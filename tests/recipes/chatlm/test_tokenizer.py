from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful.recipes.chatlm import data
from brimful.recipes.chatlm.data import END, PADDING, encode, fingerprint, load_tokenizer, tokenizer_for, train_tokenizer
from brimful.recipes.chatlm.settings import DataOptions

ROWS = [("你好吗", "我很好，谢谢。"), ("今天天气怎么样", "今天天气很好。")] * 3
TRAINED = train_tokenizer(ROWS, 300)


@given(st.text())
def test_any_text_comes_back_and_holds_no_special_token(text: str):
    text = f"{text}{END}{PADDING}"  # spelled out by a user, they are text
    ((tokens, _),) = encode(TRAINED, [text], 1000)
    assert tokens.pop() == TRAINED.eos_token_id and TRAINED.decode(tokens) == text
    assert not {TRAINED.pad_token_id, TRAINED.eos_token_id} & set(tokens)


def test_it_has_the_size_asked_for_or_what_the_data_gives():
    assert len(TRAINED) < 300 and len(train_tokenizer(ROWS, 260)) == 260


def test_it_is_saved_and_loaded_offline_as_it_was(tmp_path: Path):
    TRAINED.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert fingerprint(loaded) == fingerprint(TRAINED) != fingerprint(train_tokenizer(ROWS, 260))
    assert encode(loaded, ["你好吗"], 9) == encode(TRAINED, ["你好吗"], 9)


def test_what_is_no_tokenizer_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="no tokenizer can be read"):
        load_tokenizer(tmp_path)
    without = train_tokenizer(ROWS, 260)
    without.pad_token = None
    without.save_pretrained(tmp_path / "unpadded")
    with pytest.raises(UsageError, match="has no pad_token"):
        load_tokenizer(tmp_path / "unpadded")


def test_one_is_trained_on_the_data_once(rows_file: Path, tmp_path: Path):
    said: list[str] = []
    options = DataOptions(data=(rows_file,), vocab_size=320)
    first = tokenizer_for(options, tmp_path, said.append)
    again = tokenizer_for(options, tmp_path, said.append)
    assert len(said) == 1 and "320" in said[0] and fingerprint(first) == fingerprint(again)


def test_it_learns_from_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(data, "SAMPLED_ROWS", 10)
    late = sum(f"{n}" in train_tokenizer(((str(n) * 2, "") for n in range(10_000)), 400).get_vocab() for n in range(10, 10_000))
    assert late
