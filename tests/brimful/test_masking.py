"""What is secret, and what is not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import masking
from brimful.codec import decode_entry, encode_entry, event_of, masked_line
from brimful.command import parse, signature
from brimful.errors import UsageError
from brimful.values import Diagnostic, EffectiveSetting, Outcome, Source, TrialKind, Verdict
from brimful_inside import wire
from tests import strategies

HF, OPENAI, AWS, GITHUB, GITLAB, SLACK, GOOGLE = (
    "hf_" + "aB3" * 11,
    "sk-proj-" + "x9_" * 8,
    "AKIA" + "Q7" * 8,
    "ghp_" + "d4" * 18,
    "glpat-" + "x9_" * 7,
    "xoxb-" + "12-ab" * 5,
    "AIza" + "Sy1_" * 9,
)
JSON_WEB_TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27"


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
        ((GITLAB, SLACK, GOOGLE, JSON_WEB_TOKEN), ("***",) * 4),
        (
            ("--pwd", "1", "--pass", "ab", "--db-pass=ab"),
            ("--pwd", "***", "--pass", "***", "--db-pass=***"),
        ),
        (
            ("--passphrase", "ab", "--credentials=a.json"),
            ("--passphrase", "***", "--credentials=***"),
        ),
        (
            ("postgres://me:pa55@host:1/db", "https://host:80/a@b"),
            ("postgres://me:***@host:1/db", "https://host:80/a@b"),
        ),
        (("-H", "Authorization: Bearer abcdefgh123"), ("-H", "Authorization: Bearer ***")),
        (("--passes", "two", "--bypass", "a", "PWD=/home", "--compass=n", "--pass", "2"),) * 2,
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
        decode_entry(encode_entry(entry))
        == masking.value(entry)
        == Diagnostic("a", "with ***", "b", "c")
    )
    assert (
        masking.value(plain := Diagnostic("a", "b", "c", "d")) is plain and row.effective == "abc"
    )


@given(strategies.entries, st.data())
def test_a_secret_that_equals_a_word_of_an_entry_breaks_no_record(entry, data):
    enumerations = sorted(
        {word.value for kind in (Outcome, Source, Verdict, TrialKind) for word in kind}
    )
    word = data.draw(st.sampled_from(enumerations))
    with masking.learned_meanwhile():
        masking.learn(("--password", word))
        kept = decode_entry(encode_entry(entry))
        assert type(kept) is type(entry)
        assert [getattr(kept, n, None) for n in ("outcome", "verb", "folder", "code")] == [
            getattr(entry, n, None) for n in ("outcome", "verb", "folder", "code")
        ]
    assert masking.text(word) == word


@given(strategies.events, st.sampled_from(["process_started", "report", "progress", "script"]))
def test_a_secret_that_equals_a_word_of_the_wire_breaks_no_event(event, word):
    if isinstance(event, wire.ProcessStarted):
        event = replace(event, version=wire.WIRE_VERSION)
    line = wire.encode_event(event).decode().rstrip()
    with masking.learned_meanwhile():
        masking.learn(("--password", word))
        kept = event_of(masked_line(line).encode(), type(event))
        assert kept == masking.value(event) and type(kept) is type(event)


def test_signatures_match_that_of_a_record():
    words = ("python", "train.py", "--hf_token", HF, "--batch-size", "8", "--seed=3")
    assert signature(parse(words)) == signature(parse(masking.words(words)))
