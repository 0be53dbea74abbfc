"""The user's command as a template: which settings stand open in it, and the argv that a trial's
settings make of it.

A setting stands open as ``{batch_size}``, or is found behind a flag that training scripts commonly
use (`brimful_inside.setting_names`). The words are read once, into slots; nobody else reads them.
Pure.
"""

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from brimful import masking
from brimful.errors import UsageError
from brimful.units import parse_setting
from brimful.values import Command, Setting
from brimful_inside import setting_names
from brimful_inside.setting_names import MAY_MEAN, MEANS

# {name} is a setting; {{name}} stands for a {name} of the script's own.
_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z_][a-z0-9_]*)\}(?!\})")
_ESCAPED = re.compile(r"\{(\{[a-z_][a-z0-9_]*\})\}")

# : What stands where a run makes the command go on from its own checkpoint; trials and first
# attempts leave it out.
RESUME = "resume"


_SHOWN_FLAGS = ("--batch-size", "--train-batch-size", "--bs", "-b", "batch_size=...")
_SHORT = {"-b": "batch_size", "-j": "num_workers"}
_COUNTS = ("accumulation", "steps", "epochs")
_SETTINGS = ("batch_size", "lr", "num_workers", "accumulation")
# Of a word such as key=value, --part.key or --part.key=value: Hydra, OmegaConf, jsonargparse, tyro.
_KEY = re.compile(r"(?:\+{0,2}|--)[A-Za-z_][\w@/-]*(?:\.[\w-]+)*")
# What only names a run, starts its random numbers, says where it writes, how long it trains, or
# where its ranks meet: memory and speed are the same whatever it is. The first are so only by
# themselves: model.name is another thing.
_GENERIC_NAMES = re.compile(r"o|out|outputs?|save|name|project|tags?|notes|comment")
_FREE_NAMES = re.compile(
    r"(\w+_)?seed|(num_|max_|n_)?(train_)?epochs|default_root_dir|master_port|main_process_port|rdzv_(id|endpoint)"
    r"|(out|output|save|log|logging|results?|tensorboard|tb|work|exp|experiment|run|job|wandb|mlflow)"
    r"_?(dir|directory|folder|root|prefix|file|name|id|tag|group|project|notes)"
    r"|(out|output|save|log|results?)_?(path|to)|(ckpt|checkpoint)_?(dir|directory|folder|prefix)"
)
_LENGTH_AND_PORTS = re.compile(r"epochs$|port$|rdzv", re.IGNORECASE)


@dataclass(frozen=True)
class Slot:
    """Where a value stands in the command."""

    flag: str  # or key: "--batch-size", "data.lr"
    word: int  # which one has the value
    before: str  # what precedes it in that word: "--batch-size="
    text: str  # "" where nothing follows the flag

    @property
    def words(self) -> range:
        """Those of the flag and the value."""
        return range(self.word - (not self.before and self.text != ""), self.word + 1)

    def fit(self, name: str) -> int:
        """How well the flag fits setting `name` (`setting_names.fit`); 0: it may not mean it."""
        if len(self.flag) == 2 and self.flag.startswith("-"):
            return MAY_MEAN * (_SHORT.get(self.flag) == name)
        fit = setting_names.fit(name, self.flag) if _KEY.fullmatch(self.flag) else 0
        return fit if fit >= MAY_MEAN else 0

    @property
    def is_free(self) -> bool:
        parts = self.flag.lower().replace("-", "_").strip("_+").split(".")
        if len(parts) == 1 and _GENERIC_NAMES.fullmatch(parts[0]):
            return True
        return any(map(_FREE_NAMES.fullmatch, {parts[-1], "_".join(parts[-2:])}))


@functools.lru_cache(maxsize=256)
def _slots(argv: tuple[str, ...]) -> tuple[Slot, ...]:
    slots = []
    for i, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        following = argv[i + 1] if i + 1 < len(argv) else "-"
        if argv[max(0, i - 1)] == "-c":
            continue
        if equals:
            slots.append(Slot(flag, i, flag + "=", value))
        elif flag.startswith("-"):
            has_value = not following.startswith("-") or following[1:2].isdigit()  # -1
            slots.append(Slot(flag, i + has_value, "", following if has_value else ""))
    return tuple(slots)


def slot_of(argv: Sequence[str], name: str) -> Slot | None:
    """Where the value of setting `name` stands. Of several the last that fits best."""
    best = None
    for slot in _slots(tuple(argv)):
        fit = slot.fit(name)
        # `-b` is also an option of Python and others, `--accumulation` may be a switch, and
        # `--update-freq` take a list: behind those only a whole number is the setting's
        is_sure = (fit >= MEANS and name not in _COUNTS) or slot.text.isdecimal()
        if fit and is_sure and slot.text and "{" not in slot.text:
            best = slot if best is None or fit >= best.fit(name) else best
    return best


def parse(argv: tuple[str, ...] | list[str], opens_batch_size: bool = True) -> Command:
    """The command in `argv`: its placeholders, and what known flags say in it.

    If `opens_batch_size`, the batch size is opened where no placeholder stands (a flag's value
    becomes ``{batch_size}``); all other known flags are read (``given``) and left as they are.
    `found_flags` also has the flag of an accumulation, since an audit rests on it. Raises
    UsageError for an empty command.
    """
    if not argv:
        raise UsageError(
            problem="no command was given",
            explanation="brimful runs your own training command for a few steps",
            suggestion="put it behind two dashes: brimful predict --gpu a100-40gb -- python "
            "train.py --batch-size {batch_size}",
        )
    parts = list(argv)
    _refuse_overridden(_slots(tuple(argv)))
    given: dict[str, Setting] = {}
    flags: dict[str, str] = {}
    left = {*placeholders(Command(tuple(parts))), *(() if opens_batch_size else ("batch_size",))}
    for name in [name for name in _SETTINGS if name not in left]:
        if (slot := slot_of(argv, name)) is not None:
            given[name] = parse_setting(slot.text)
            if name == "batch_size":
                parts[slot.word] = slot.before + "{batch_size}"
            if name in ("batch_size", "accumulation"):
                flags[name] = slot.flag
    return Command(tuple(parts), found_flags=flags, given=given)


def opened(command: Command, name: str, whole: bool = True) -> Command:
    """The command with a placeholder where a flag for `name` has a value, if one has: a known one,
    else that of this name. `whole`: where the value is a whole number."""
    slot = slot_of(command.argv, name)
    if slot is None or name in placeholders(command) or (whole and not slot.text.isdecimal()):
        return command
    word = f"{slot.before}{{{name}}}"
    return replace(
        command,
        argv=(*command.argv[: slot.word], word, *command.argv[slot.word + 1 :]),
        given={**command.given, name: parse_setting(slot.text)},
    )


def _refuse_overridden(slots: Sequence[Slot]) -> None:
    """Raises UsageError where a flag that has a placeholder stands once more behind it: scripts
    take the last of two.
    """
    last = {slot.flag: slot.text for slot in slots}
    for slot in slots:
        flag, text = slot.flag, slot.text
        is_setting = text[1:-1] in _SETTINGS and slot.fit(text[1:-1]) and text[0] == "{"
        if is_setting and last[flag] != text:
            raise UsageError(
                problem=f"{flag} {text} is followed by {flag} {last[flag]}",
                explanation="a script takes the last of the two (argparse does), so that no "
                "setting would reach it",
                suggestion=f"keep one: {flag} {text} for brimful to set it, {flag} "
                f"{last[flag]} to keep that",
            )


def asks_in_all(command: Command, samples: int) -> bool:
    """Whether a flag for the samples of a whole update (litgpt's --train.global_batch_size) has
    this number.
    """
    slot = slot_of(command.argv, "samples_of_an_update")
    return slot is not None and slot.text == str(samples)


def scripts(command: Command) -> list[Path]:
    """The files of code that the command names."""
    return [Path(word) for word in command.argv if word.endswith((".py", ".sh"))]


def times_given(command: Command, flag: str) -> int:
    """How often a flag stands in the command."""
    return sum(slot.flag == flag for slot in _slots(command.argv))


def placeholders(command: Command) -> tuple[str, ...]:
    """Settings that stand open in the command, in order, each once. ``{resume}`` is none: it stands
    for words or nothing.
    """
    names = dict.fromkeys(name for word in command.argv for name in _PLACEHOLDER.findall(word))
    return tuple(name for name in names if name != RESUME)


def can_resume(command: Command) -> bool:
    """Whether the command has a place for the words that make it go on from its own checkpoint."""
    return any(RESUME in _PLACEHOLDER.findall(word) for word in command.argv)


def resuming(command: Command, words: Sequence[str] = ()) -> Command:
    """The command with `words` where ``{resume}`` stands; without words, whatever holds it is left
    out.
    """
    argv: list[str] = []
    for word in command.argv:
        if RESUME not in _PLACEHOLDER.findall(word):
            argv.append(word)
        elif word == f"{{{RESUME}}}":
            argv.extend(words)
        elif words:
            argv.append(word.replace(f"{{{RESUME}}}", " ".join(words)))
    return replace(command, argv=tuple(argv))


def free_values(command: Command) -> dict[str, str]:
    """What neither memory nor speed depends on: seeds, names, places to write to, epochs. By flag,
    with its value or "".
    """
    slots = _slots(masking.words(command.argv))
    return {slot.flag: slot.text for slot in slots if slot.is_free}


def names_of_run(command: Command) -> dict[str, str]:
    """Of `free_values` those by which a training differs from another, and its checkpoint: not how
    long it trains, nor where its ranks meet.
    """
    return {f: v for f, v in free_values(command).items() if not _LENGTH_AND_PORTS.search(f)}


def without(command: Command, names: Sequence[str]) -> Command | None:
    """The command without the words in which these placeholders stand, and the flags before them,
    so that the script takes its own defaults. None where one stands in no flag's or key's place."""
    left_out: set[int] = set()
    for slot in _slots(command.argv):
        if (hit := _PLACEHOLDER.fullmatch(slot.text)) and hit[1] in names:
            left_out.update(slot.words)
    argv = tuple(word for i, word in enumerate(command.argv) if i not in left_out)
    bare = replace(command, argv=argv)
    return None if {*names} & {*placeholders(bare)} else bare


def signature(command: Command) -> tuple[str, ...]:
    """What two commands have in common that differ in their settings alone: values behind known
    flags and placeholders are ``*``, and what only a run needs (accumulation, ``{resume}``) or what
    is free (`free_values`) is left out, what is secret masked. One Python is like another."""
    words = list(resuming(command).argv)
    slots = _slots(tuple(words))
    last = {slot.flag: slot for slot in slots}
    left_out = {i for i, word in enumerate(words) if "{accumulation}" in word}
    for slot in slots:
        is_setting = slot.flag not in _SHORT and any(map(slot.fit, _SETTINGS))
        is_overridden = is_setting and last[slot.flag] is not slot
        if slot.is_free or is_overridden or slot.text == "{accumulation}":
            left_out.update(slot.words)
    for name in _SETTINGS:
        if (slot := slot_of(words, name)) is not None:
            words[slot.word] = slot.before + "*"
            left_out.update(slot.words if name == "accumulation" else ())
    if words and re.fullmatch(r"python(3(\.\d+)?)?", Path(words[0]).name):
        words[0] = "python"
    kept = [word for i, word in enumerate(words) if i not in left_out]
    return masking.words([_PLACEHOLDER.sub("*", word) for word in kept])


def fill(command: Command, settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """The argv with every placeholder filled. Raises UsageError for one that nobody sets."""
    command = resuming(command)
    missing = [name for name in placeholders(command) if name not in settings]
    if missing:
        raise UsageError(
            problem=f"the command holds {{{missing[0]}}} and nothing sets it",
            explanation="the command cannot start with an open placeholder",
            suggestion=f"give it a value with --set {missing[0]}=VALUE, or write the value in the "
            "command; "
            f"braces that are the script's own are doubled: {{{{{missing[0]}}}}}",
        )
    return tuple(_ESCAPED.sub(r"\1", word) for word in filled(command, settings))


def filled(command: Command, settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """The argv, still a template, with these placeholders filled."""

    def text(hit: re.Match[str]) -> str:
        value = settings.get(hit[1], hit[0])
        return str(value).lower() if isinstance(value, bool) else str(value)

    return tuple(_PLACEHOLDER.sub(text, word) for word in command.argv)


def says_inside(text: str, name: str) -> bool:
    """Whether a script's own text asks brimful for a setting: ``brimful.setting("batch_size",
    64)``.
    """
    return re.search(rf"\bsetting\(\s*[\"']{re.escape(name)}[\"']", text) is not None


def no_place_for(command: Command, name: str, problem: str) -> UsageError:
    """Of a setting that the command has no place for; the example is the command itself."""
    with_place = opened(command, name, whole=False)
    added = (f"--{name.replace('_', '-')}", f"{{{name}}}") if with_place is command else ()
    line = shlex.join((*filled(with_place, {**command.given, name: f"{{{name}}}"}), *added))
    # the names that the command gives: those that brimful knows, then its own words behind flags
    # and as keys
    own = [
        setting_names.plain(slot.flag)
        for slot in _slots(command.argv)
        if slot.text and _KEY.fullmatch(slot.flag) and not any(map(slot.fit, command.given))
    ]
    settings = [*dict.fromkeys((*command.given, *own))]
    # by any name that scripts give the batch size, which brimful sets without a flag too, or by
    # what looks alike: batchsize and batch_size are so at 0.95 of 1
    others = {"batch_size", *settings} - {name}
    meant = next(iter(get_close_matches(name, others, 1, cutoff=0.8)), None)
    if name != "batch_size" and setting_names.fit("batch_size", name) >= MAY_MEAN:
        meant = "batch_size"
    return UsageError(
        problem,
        "brimful has no place to write it; the command"
        + (f"'s settings are {', '.join(settings)}" if settings else " has no settings"),
        f"did you mean {meant}?"
        if meant
        else f"write {{{name}}} where its value goes, for instance:\n{line}",
    )


def no_place_for_a_batch_size(why: str = "") -> UsageError:
    """What to say where a batch size has to be chosen and the command has no place for one. `why`:
    nor has the script.
    """
    return UsageError(
        problem="the command has no {batch_size}, and none of the flags that brimful knows "
        f"({', '.join(_SHOWN_FLAGS)} and the like){'; ' + why if why else ''}",
        explanation="brimful cannot set the batch size of your script",
        suggestion="write {batch_size} where the number goes, for instance: python train.py "
        "--my-batch "
        "{batch_size}; "
        'or take it in the script from brimful.setting("batch_size", 64)',
    )
