"""What is secret in a command and its settings, and "***" in its place: here alone it is decided.

The script gets the true words. A flag, setting or environment variable is secret by its name
(`--hf_token`, `api-key=`, `DB_PASSWORD=`), any word by the form of well-known keys. `learn`
remembers the values of a command, so that they are found in an error's text as well.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

MASK = "***"
_NAMES = re.compile(
    r"token(?!iz)|key|secret|passw(or)?d|passphrase|credential|(?<![a-z])(pass|pwd)$", re.IGNORECASE
)
_WORKING_FOLDER = "PWD"  # a shell's variable of that name
# Names of which the value is no word of any text: --sort-key has "labels", --api-key has not.
_SURELY = re.compile(r"api|access|auth|private|token|secret|pass|pwd|credential", re.IGNORECASE)
_PASSWORDS = re.compile(r"secret|passw|passphrase|pwd", re.IGNORECASE)
# --max_tokens 512, --use_auth_token true, --num_key_value_heads {heads}
_PLAIN = re.compile(r"[-+]?[\d.,_]{1,12}(e[-+]?\d+)?[kmgbt]?|true|false|yes|no|none|\{.*\}", re.I)
# Hugging Face, OpenAI, AWS, GitHub, GitLab, Slack, Google, JSON web tokens; what stands behind
# "Bearer" in a header, and the password in an address.
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}|AKIA[A-Z0-9]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[a-z]-[\w-]{10,}"
    r"|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
    r"|((?i:\bbearer)\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{8,}|(://[^\s/?#:@]*:)[^\s/?#@]+(?=@)"
)
# Fields whose texts are brimful's own words, names of files, or what is looked up by them.
_OUR_WORDS = re.compile(
    r"verb|record(_id)?|(working_)?folder|hostname|goes_on|kind|code|memory|method|phase|role|ended"
    r"|device|meaning|raised_by|setting|use|category|(bound|limited)_by|key|source|find_places"
    r"|(trace_)?file"
)
_FLAG = re.compile(r"--?[A-Za-z_][\w.-]*")
_ASSIGNED = re.compile(r"([-+]*[A-Za-z_][\w@/.-]*)=(.+)", re.DOTALL)
# in lower case it is a keyword of somebody's source: sorted(names, key=str)
_IN_TEXT = re.compile(r"(?<![\w.-])(?:(--[\w.-]+)([ =])|([A-Z][A-Z0-9_]*)(=))([^\s,;)\"']+)")
_SHORTEST = 6  # of a value that is looked for in text

_learned: set[str] = set()


def learn(words: Sequence[str], settings: Mapping[str, Any] | None = None) -> None:
    """Remembers the secret values in a command's words and its settings."""
    pairs = [(name, value) for _, _, name, value in _secrets_in(words)]
    pairs += [(name, value) for name, value in (settings or {}).items() if isinstance(value, str)]
    for name, value in pairs:
        known = _SURELY.search(name) or re.search(r"\d", value)
        if _is_secret(name, value) and known and len(value) >= _SHORTEST and value != MASK:
            _learned.add(value)


@contextmanager
def learned_meanwhile() -> Iterator[None]:
    """What is learned within is forgotten at its end: words that another record holds."""
    before = set(_learned)
    try:
        yield
    finally:
        _learned.intersection_update(before)


def words(argv: Sequence[str]) -> tuple[str, ...]:
    """The words of a command as they may be kept and shown."""
    masked = list(argv)
    for at, before, _, _ in _secrets_in(argv):
        masked[at] = before + MASK
    return tuple(map(_without_forms, masked))


def text(said: str) -> str:
    """The same of a sentence, or of anything that a script printed."""

    def hide(hit: re.Match[str]) -> str:
        name, between = hit[1] or hit[3], hit[2] or hit[4]
        return name + between + MASK if _is_secret(name, hit[5]) else hit[0]

    return _without_forms(_IN_TEXT.sub(hide, said))


def value(of: Any) -> Any:
    """The same of anything made of dataclasses, dicts, lists and strings: lists of strings are
    words. Enumerations, and fields that hold our own words, are no free text: a secret may equal
    one of them."""
    if isinstance(of, Enum):
        return of
    if isinstance(of, str):
        return text(of)
    if isinstance(of, list | tuple):
        strings = all(isinstance(part, str) for part in of)
        return type(of)(map(text, words(of)) if strings else map(value, of))
    if is_dataclass(of) and not isinstance(of, type):
        parts = {field.name: getattr(of, field.name) for field in fields(of)}
        ours = {n for n, part in parts.items() if isinstance(part, str) and _OUR_WORDS.fullmatch(n)}
        hidden = value({name: part for name, part in parts.items() if name not in ours})
        return (
            of
            if all(parts[name] == part for name, part in hidden.items())
            else replace(of, **hidden)
        )
    if not isinstance(of, dict):
        return of
    # a row of settings: its name stands beside its values
    name = of.get("name") if "effective" in of else None
    return {
        key: MASK
        if isinstance(part, str)
        and (
            (key != "key" and _is_secret(str(key), part))
            or (key in ("requested", "effective") and _is_secret(str(name), part))
        )
        else value(part)
        for key, part in of.items()
    }


def _secrets_in(argv: Sequence[str]) -> list[tuple[int, str, str, str]]:
    """(which word, what precedes the value in it, the name, the value) of each by its name."""
    secrets = []
    for at, word in enumerate(argv):
        following = argv[at + 1] if at + 1 < len(argv) else "-"
        if assigned := _ASSIGNED.fullmatch(word):
            if _is_secret(assigned[1], assigned[2]):
                secrets.append((at, f"{assigned[1]}=", assigned[1], assigned[2]))
        elif _FLAG.fullmatch(word) and following[:1] != "-" and _is_secret(word, following):
            secrets.append((at + 1, "", word, following))
    return secrets


def _is_secret(name: str, value: str) -> bool:
    if not value or name == _WORKING_FOLDER or _NAMES.search(name) is None:
        return False
    return _PASSWORDS.search(name) is not None or _PLAIN.fullmatch(value) is None


def _without_forms(said: str) -> str:
    for known in sorted(_learned, key=len, reverse=True):
        said = said.replace(known, MASK)
    return _FORMS.sub(lambda hit: (hit[1] or hit[2] or "") + MASK, said)
