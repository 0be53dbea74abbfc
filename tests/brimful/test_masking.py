"""What is secret, and what is not."""

import pytest

from brimful import masking
from brimful.codec import decode_entry, encode_entry, masked
from brimful.command import parse, signature
from brimful.errors import UsageError
from brimful.values import Diagnostic, EffectiveSetting

HF, OPENAI, AWS, GITHUB = (
    "hf_" + "aB3" * 11,
    "sk-proj-" + "x9_" * 8,
    "AKIA" + "Q7" * 8,
    "ghp_" + "d4" * 18,
)


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch):
    monkeypatch.setattr(masking, "_learned", set())


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("--hf_token", "abc"), ("--hf_token", "***")),
        (("--api-key=abc",), ("--api-key=***",)),
        (
            ("env", "WANDB_API_KEY=abc", "DB_PASSWD=1"),
            ("env", "WANDB_API_KEY=***", "DB_PASSWD=***"),
        ),
        (("hub.secret=abc", "--db.password", "1234"), ("hub.secret=***", "--db.password", "***")),
        (
            ("--login", HF, f"see-{OPENAI}", AWS, GITHUB),
            ("--login", "***", "see-***", "***", "***"),
        ),
        (("--max_tokens", "512", "--num-tokens=10B"),) * 2,
        (("--tokenizer", "gpt2", "--tokenizer_name=gpt2", "--pad_token_id", "-1"),) * 2,
        (("--use_auth_token", "--lr", "3", "--num_key_value_heads", "{heads}"),) * 2,
        (("hf_model", "sk-learn", "--name", "task-12345678901234567890"),) * 2,
    ],
)
def test_words_are_masked_by_their_flags_name_or_their_own_form(words, shown):
    assert masking.words(words) == shown
    assert masking.words(shown) == shown


def test_a_learned_value_is_found_in_any_text():
    masking.learn(("--hub_token", "correct-horse", "--sort-key", "labels"), {"api_key": "battery"})
    assert masking.text(
        "401: correct-horse and battery are wrong, labels are right; DB_PASSWORD=x --password y"
    ) == ("401: *** and *** are wrong, labels are right; DB_PASSWORD=*** --password ***")
    line = "sorted(names, key=str), pad_token=other.eos_token"
    assert masking.text(line) == line
    assert "correct-horse" not in str(UsageError("no correct-horse"))


def test_an_entry_is_masked_on_its_way_to_the_disk_and_reads_as_it_is_shown():
    row = EffectiveSetting("hf_token", "abc", "abc", "given")
    assert masking.value({"effective": "abc", "name": "hf_token"})["effective"] == "***"
    assert masking.value({"settings": {"hf_token": "abc", "key": "a"}}) == {
        "settings": {"hf_token": "***", "key": "a"}
    }
    entry = Diagnostic("a", f"with {HF}", "b", "c")
    assert (
        decode_entry(encode_entry(entry)) == masked(entry) == Diagnostic("a", "with ***", "b", "c")
    )
    assert masked(plain := Diagnostic("a", "b", "c", "d")) is plain and row.effective == "abc"


def test_signatures_match_that_of_a_record():
    words = ("python", "train.py", "--hf_token", HF, "--batch-size", "8", "--seed=3")
    assert signature(parse(words)) == signature(parse(masking.words(words)))
