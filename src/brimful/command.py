"""The user's command as a template: which settings stand open in it, and the argv that a trial's
settings make of it.

A setting stands open as ``{batch_size}``, or is found behind a flag that training scripts commonly
use. Pure.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from brimful import masking
from brimful.errors import UsageError
from brimful.units import parse_setting
from brimful.values import Command, Setting

# {name} is a setting; {{name}} stands for a {name} of the script's own.
_PLACEHOLDER = re.compile(r"(?<!\{)\{([a-z_][a-z0-9_]*)\}(?!\})")
_ESCAPED = re.compile(r"\{(\{[a-z_][a-z0-9_]*\})\}")

# : What stands where a run makes the command go on from its own checkpoint; trials and first
# attempts leave it out.
RESUME = "resume"


_SHOWN_FLAGS = ("--batch-size", "--train-batch-size", "--bs", "-b", "batch_size=...")
# By the last part of a flag or key: --learning-rate, --train.lr, trainer.lr=... (Hydra, OmegaConf,
# jsonargparse, tyro). Accumulation: names of Transformers, Lightning, fairseq (ConvNeXt as well),
# MAE and open_clip, and of scripts that write their own loop.
_NAMES = {
    "lr": {"lr", "learning_rate"},
    "num_workers": {"num_workers", "workers", "dataloader_num_workers"},
    "accumulation": {
        *("gradient_accumulation_steps", "accumulate_grad_batches", "update_freq", "accum_iter"),
        *("accum_freq", "accumulation_steps", "grad_accum_steps", "grad_accum", "accumulation"),
        "accum",
    },
}
_SHORT = {"-b": "batch_size", "-j": "num_workers"}
_SETTINGS = ("batch_size", *_NAMES)
# A batch size is known by the words of its name: --train-bs, --batchSize, --windows_batch_size.
_SIZES = {"bs", "bsz", "bsize", "batchsize"}
_OF_ONE_PASS = {"micro", "device", "gpu"}
_OF_TRAINING = {"batch", "size", "train", "training", "mini", "per", *_SIZES, *_OF_ONE_PASS}
_OF_OTHERS = {
    *("eval", "evaluation", "val", "valid", "validation", "dev", "test", "testing"),
    *("pred", "predict", "prediction", "infer", "inference", "gen", "generation", "rollout"),
    *("sample", "sampling", "decode", "global", "total", "effective", "max", "min", "n", "num"),
    *("no", "auto", "find", "scale", "warmup", "log"),
}
# Of a word such as key=value, --part.key or --part.key=value.
_KEY = re.compile(r"(?:\+{0,2}|--)[A-Za-z_][\w@/-]*(?:\.[\w-]+)*")
# What a script divides by its batch size, to know how many batches go into an update.
_WHOLE_BATCH = re.compile(
    r"(?:\+{0,2}|--)(?:[\w-]+\.)*(?:global|total|effective)[_-](?:train[_-])?batch[_-]?size"
)
# What only names a run, starts its random numbers, says where it writes, how long it trains, or
# where its ranks meet: memory and speed are the same whatever it is. The first are so only by
# themselves: model.name is another thing.
_GENERIC_NAMES = {
    "o",
    "out",
    "output",
    "outputs",
    "save",
    "name",
    "project",
    "tag",
    "tags",
    "notes",
    "comment",
}
_FREE_NAMES = re.compile(
    r"(\w+_)?seed|(num_|max_|n_)?(train_)?epochs|default_root_dir|master_port|main_process_port|rdzv_(id|endpoint)"
    r"|(out|output|save|log|logging|results?|tensorboard|tb|work|exp|experiment|run|job|wandb|mlflow)"
    r"_?(dir|directory|folder|root|prefix|file|name|id|tag|group|project|notes)"
    r"|(out|output|save|log|results?)_?(path|to)|(ckpt|checkpoint)_?(dir|directory|folder|prefix)"
)
_LENGTH_AND_PORTS = re.compile(r"epochs$|port$|rdzv", re.IGNORECASE)


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
    _refuse_overridden(parts)
    given: dict[str, Setting] = {}
    flags: dict[str, str] = {}
    left = {*placeholders(Command(tuple(parts))), *(() if opens_batch_size else ("batch_size",))}
    for name in [name for name in _SETTINGS if name not in left]:
        if (spot := _find(parts, name)) is not None:
            index, prefix, text, flag = spot
            given[name] = parse_setting(text)
            if name == "batch_size":
                parts[index] = prefix + "{batch_size}"
            if name in ("batch_size", "accumulation"):
                flags[name] = flag
    return Command(tuple(parts), found_flags=flags, given=given)


def opened(command: Command, name: str, whole: bool = True) -> Command:
    """The command with a placeholder where a flag for `name` has a value, if one has: a known one,
    else that of this name. `whole`: where the value is a whole number."""
    parts = list(command.argv)
    spot = _find(parts, name)
    if spot is None or name in placeholders(command) or (whole and not spot[2].isdecimal()):
        return command
    parts[spot[0]] = f"{spot[1]}{{{name}}}"
    return replace(
        command, argv=tuple(parts), given={**command.given, name: parse_setting(spot[2])}
    )


def _refuse_overridden(parts: list[str]) -> None:
    """Raises UsageError where a flag that has a placeholder stands once more behind it: scripts
    take the last of two.
    """
    for name in _SETTINGS:
        for flag in _flags_of(parts, name):
            texts = [text for _, text in _values_behind(parts, flag)]
            if len(texts) > 1 and f"{{{name}}}" in texts and texts[-1] != f"{{{name}}}":
                raise UsageError(
                    problem=f"{flag} {{{name}}} is followed by {flag} {texts[-1]}",
                    explanation="a script takes the last of the two (argparse does), so that no "
                    "setting would reach it",
                    suggestion=f"keep one: {flag} {{{name}}} for brimful to set it, {flag} "
                    f"{texts[-1]} to keep that",
                )


def _values_behind(parts: list[str], flag: str) -> list[tuple[int, str]]:
    """(where the flag stands, its value), for each time that it is given."""
    values = []
    for i, word in enumerate(parts):
        if word == flag and i + 1 < len(parts):
            values.append((i, parts[i + 1]))
        elif word.startswith(flag + "="):
            values.append((i, word[len(flag) + 1 :]))
    return values


def _last_of_each(words: list[str]) -> list[str]:
    """Without the known flags that the same flag overrides further on."""
    left_out: set[int] = set()
    for flag in {flag for name in _SETTINGS for flag in _flags_of(words, name)} - _SHORT.keys():
        for i, _ in _values_behind(words, flag)[:-1]:
            left_out |= {i} if "=" in words[i] else {i, i + 1}
    return [word for i, word in enumerate(words) if i not in left_out]


def _flags_of(words: Sequence[str], name: str) -> set[str]:
    """The flags among `words` that take setting `name`."""
    flags = (word.partition("=")[0] for word in words if word.startswith("-"))
    return {flag for flag in flags if _rank(name, flag)}


def _find(parts: list[str], name: str) -> tuple[int, str, str, str] | None:
    """Where the value of setting `name` stands: index, what precedes it in that word, the value,
    the flag or key. Of several the last that fits best.
    """
    hit, best = None, 1
    for i, word in enumerate(parts):
        key, equals, value = word.partition("=")
        rank = _rank(name, key)
        is_flag = key.startswith("-")
        if rank < best or not (is_flag or equals) or (i > 0 and parts[i - 1] == "-c"):
            continue
        following = parts[i + 1] if i + 1 < len(parts) else ""
        spot = (i, key + "=", value, key) if equals else (i + 1, "", following, key)
        # `-b` is also an option of Python and others, `--accumulation` may be a switch, and
        # `--update-freq` take a list: behind those only a whole number is the setting's
        is_sure = (rank > 1 and name != "accumulation") or spot[2].isdecimal()
        if spot[2] and "{" not in spot[2] and is_sure:
            hit, best = spot, rank
    return hit


def _rank(name: str, key: str) -> int:
    """How well a flag or key fits setting `name`; 0: not at all. 1: it may mean something else."""
    if len(key) == 2 and key.startswith("-"):
        return int(_SHORT.get(key) == name)
    if not _KEY.fullmatch(key):
        return 0
    last = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.lstrip("+-").split(".")[-1])
    last = last.replace("-", "_").lower()
    if name != "batch_size":
        return 2 * (last in _NAMES.get(name, {name}))
    words = set(last.split("_"))
    is_size = bool(words & _SIZES) or {"batch", "size"} <= words
    if words & _OF_OTHERS or not (is_size or ("batch" in words and words <= _OF_TRAINING)):
        return 0
    if not (is_size and words <= _OF_TRAINING):
        return 1
    return 3 if words & _OF_ONE_PASS else 2


def asks_in_all(command: Command, samples: int) -> bool:
    """Whether a flag for the samples of a whole update (litgpt's --train.global_batch_size) has
    this number.
    """
    words = [part for word in command.argv for part in word.split("=", 1)]
    return any(
        _WHOLE_BATCH.fullmatch(word) and following == str(samples)
        for word, following in pairwise(words)
    )


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
    return {flag: value for flag, value, _ in _free(masking.words(command.argv))}


def names_of_run(command: Command) -> dict[str, str]:
    """Of `free_values` those by which a training differs from another, and its checkpoint: not how
    long it trains, nor where its ranks meet.
    """
    return {f: v for f, v in free_values(command).items() if not _LENGTH_AND_PORTS.search(f)}


def _free(words: Sequence[str]) -> list[tuple[str, str, range]]:
    """(flag, value, which words these are) of each."""
    free = []
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        parts = flag.lower().replace("-", "_").strip("_+").split(".")
        is_free = any(map(_FREE_NAMES.fullmatch, {parts[-1], "_".join(parts[-2:])}))
        is_free = is_free or (len(parts) == 1 and parts[0] in _GENERIC_NAMES)
        is_flag = equals or flag.startswith("-")
        if not is_free or not is_flag or words[max(0, i - 1)] == "-c":
            continue
        following = words[i + 1] if i + 1 < len(words) else "-"
        alone = equals or following.startswith("-")
        free.append((flag, value if alone else following, range(i, i + (1 if alone else 2))))
    return free


def without(command: Command, names: Sequence[str]) -> Command | None:
    """The command without the words in which these placeholders stand, and the flags before them,
    so that the script takes its own defaults. None where one stands in no flag's or key's place."""
    argv: list[str] = []
    for word in command.argv:
        placeholders = [name for name in _PLACEHOLDER.findall(word) if name in names]
        if not placeholders:
            argv.append(word)
        elif (
            word == f"{{{placeholders[0]}}}"
            and argv
            and argv[-1].startswith("-")
            and argv[-1] != "-c"
        ):
            argv.pop()
        elif not re.fullmatch(r"[\w@/.+-]+=\{" + placeholders[0] + r"\}", word):
            return None
    return replace(command, argv=tuple(argv))


def signature(command: Command) -> tuple[str, ...]:
    """What two commands have in common that differ in their settings alone: values behind known
    flags and placeholders are ``*``, and what only a run needs (accumulation, ``{resume}``) or what
    is free (`free_values`) is left out, what is secret masked. One Python is like another."""
    words = list(resuming(command).argv)
    free = {i for _, _, spots in _free(words) for i in spots}
    words = _last_of_each([word for i, word in enumerate(words) if i not in free])
    if words and re.fullmatch(r"python(3(\.\d+)?)?", Path(words[0]).name):
        words[0] = "python"
    for name in _SETTINGS:
        spot = _find(words, name)
        if spot is not None and "{" not in spot[2]:
            words[spot[0]] = spot[1] + ("{accumulation}" if name == "accumulation" else "{}")
    shown: list[str] = []
    for word in words:
        if "{accumulation}" not in word:
            shown.append(_PLACEHOLDER.sub("*", word).replace("{}", "*"))
        elif word == "{accumulation}" and shown and shown[-1].startswith("-"):
            shown.pop()
    return masking.words(shown)


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
    keys = [
        word.partition("=")[0]
        for word, following in pairwise((*command.argv, "-"))
        if "=" in word or (word.startswith("--") and not following.startswith("-"))
    ]
    words = [key.lstrip("+-").split(".")[-1] for key in keys if _KEY.fullmatch(key)]
    own = [word for word in words if not any(_rank(known, word) for known in command.given)]
    settings = [*dict.fromkeys((*command.given, *(word.replace("-", "_") for word in own)))]
    # by any name that scripts give the batch size, which brimful sets without a flag too, or by
    # what looks alike: batchsize and batch_size are so at 0.95 of 1
    others = {"batch_size", *settings} - {name}
    meant = next(iter(get_close_matches(name, others, 1, cutoff=0.8)), None)
    if name != "batch_size" and _rank("batch_size", name):
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
