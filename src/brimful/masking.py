"""What is secret in a command and its settings, and "***" in its place: here alone it is decided.

The script gets the true words. A flag, setting or environment variable is secret by its name
(`--hf_token`, `api-key=`, `DB_PASSWORD=`), any word by the form of well-known keys. `learn`
remembers the values of a command, so that they are found in an error's text as well.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_NAMES = re.compile(r"token(?!iz)|key|secret|passw(or)?d", re.IGNORECASE)
# Names of which the value is no word of any text: --sort-key has "labels", --api-key has not.
_SURELY = re.compile(r"api|access|auth|private|token|secret|passw", re.IGNORECASE)
_PASSWORDS = re.compile(r"secret|passw", re.IGNORECASE)
# --max_tokens 512, --use_auth_token true, --num_key_value_heads {heads}
_PLAIN = re.compile(r"[-+]?[\d.,_]{1,12}(e[-+]?\d+)?[kmgbt]?|true|false|yes|no|none|\{.*\}", re.I)
_FORMS = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{16,}|sk-(?=[\w-]*\d)[\w-]{16,}|AKIA[A-Z0-9]{12,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,})"
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
    """The same of anything made of dicts, lists and strings: lists of strings are words."""
    if isinstance(of, str):
        return text(of)
    if isinstance(of, list | tuple):
        strings = all(isinstance(part, str) for part in of)
        return list(map(text, words(of))) if strings else [value(part) for part in of]
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
    if not value or _NAMES.search(name) is None:
        return False
    return _PASSWORDS.search(name) is not None or _PLAIN.fullmatch(value) is None


def _without_forms(said: str) -> str:
    for known in sorted(_learned, key=len, reverse=True):
        said = said.replace(known, MASK)
    return _FORMS.sub(MASK, said)
