"""The command line of a recipe: the engine's `Config`, presets under it, and its exit codes.

    presets = Presets(SMALL, LARGE, on_a_card=SMALL_ON_A_CARD)
    app = App(name="python -m recipes.NAME", config=presets.apply)

    @app.default
    def train(*, preset: str = presets.default, own: OwnOptions = ..., config: Config = ...) -> int:
    ...

    sys.exit(run(app, sys.argv[1:]))

The fields of the dataclasses are the flags; a preset gives values to those that the command line
leaves out, and `presets.rows` says of each where its value comes from. Importing this imports no
torch, so that --help is quick.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cyclopts import App, ArgumentCollection, CycloptsError, Token

from brimful.errors import BrimfulError, UsageError, nearest
from brimful.values import EffectiveSetting
from brimful_inside.script import ends_with


@dataclass(frozen=True)
class Preset:
    """Values of flags by their names without dashes ("batch-size").

    why: where they come from, in a sentence. assumed: of single flags, why nothing better than an
    assumption is known.
    """

    name: str
    why: str
    flags: Mapping[str, str | int | float | bool]
    assumed: Mapping[str, str]


class Presets:
    """`apply` is an App's `config`: it gives the flags of --preset (the first one without it) their
    values, and fills `rows`.

    on_a_card: what stands in for the preset of the same name where --device is no CPU.
    """

    def __init__(self, *presets: Preset, on_a_card: Preset | None = None) -> None:
        self.default, self._on_a_card = presets[0].name, on_a_card
        self.presets = {preset.name: preset for preset in presets}
        self.rows: list[EffectiveSetting] = []

    def apply(self, app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
        flags = {argument.name.removeprefix("--"): argument for argument in arguments}
        if "preset" not in flags:
            return
        tokens = {name: argument.tokens for name, argument in flags.items() if argument.tokens}
        given = {
            name: " ".join(str(token.value or token.implicit_value) for token in of_flag)
            for name, of_flag in tokens.items()
        }
        preset = self.find(given.pop("preset", self.default), given.get("device", "auto"))
        freed, source = _freed(given, preset), f"preset {preset.name}"
        kept = {
            name: value
            for name, value in preset.flags.items()
            if name not in given and name not in freed
        }
        self.rows = [
            *(EffectiveSetting(name, None, None, why) for name, why in freed.items()),
            *(
                EffectiveSetting(
                    name,
                    None,
                    value,
                    f"{source}; {preset.assumed[name]}" if name in preset.assumed else source,
                )
                for name, value in kept.items()
            ),
            *(
                EffectiveSetting(
                    name,
                    value,
                    value,
                    f"given; {source} has {preset.flags[name]}"
                    if str(preset.flags.get(name, value)) != value
                    else "given",
                )
                for name, value in given.items()
            ),
        ]
        added = {name: str(value) for name, value in kept.items()}
        if "given" in flags and "given" not in given:  # what a preset gave, a policy may lower
            names = (".".join(flags[name].keys) for name in given if len(flags[name].keys) > 1)
            added["given"] = ",".join(names) or "config"
        others = {"checkpoint-every-steps", "checkpoint-every-minutes", "save-every"}
        if others & given.keys() and "checkpoint-every-epochs" not in given:
            added["checkpoint-every-epochs"] = "none"  # the other interval stands in its place
        for name, value in added.items():
            flags[name].append(Token(keyword=f"--{name}", value=value, source=source))

    def find(self, name: str, device: str) -> Preset:
        """As it is on a device: what was measured on a CPU is not taken to a card unchanged."""
        if name not in self.presets:
            close = nearest(name, self.presets)
            more = f" Nearest: {close[0]}." if close else ""
            names = ", ".join(self.presets)
            raise UsageError(
                f"--preset {name}: there is no such preset.",
                suggestion=f"Name one of {names}.{more}",
            )
        card = self._on_a_card
        if card is None or card.name != name:
            return self.presets[name]
        if device == "auto":
            from brimful_train.distributed.ranks import device_for

            device = device_for(device).type
        return self.presets[name] if device == "cpu" else card


def _freed(given: Mapping[str, str], preset: Preset) -> dict[str, str]:
    """Flags of a preset that do not hold with what was given, and why.

    Its effective batch and its limit of tokens go with its batch size: neither shall cap one that
    was given. Its scaling rule scales its learning rate, not one that was given.
    """
    freed = {}
    effective = preset.flags.get("effective-batch")
    by = next((name for name in ("batch-size", "accumulation") if name in given), None)
    if by and effective is not None and "effective-batch" not in given:
        freed["effective-batch"] = (
            f"--{by} is given: the preset's {effective:,} is not kept (--effective-batch "
            f"{effective} keeps it)"
        )
    if "batch-size" in given and "max-tokens" in preset.flags and "max-tokens" not in given:
        most = preset.flags["max-tokens"]
        freed["max-tokens"] = (
            f"--batch-size is given: batches have that many samples (--max-tokens {most} holds "
            "them to it)"
        )
    if (
        "lr" in given
        and "scaling" in preset.flags
        and not {"scaling", "reference-batch"} & given.keys()
    ):
        for name in ("scaling", "reference-batch"):
            freed[name] = (
                "--lr is given: it is taken as it is, not scaled from batch "
                f"{preset.flags['reference-batch']:,}"
            )
    return freed


def is_first() -> bool:
    """Whether this process speaks for all: rank 0, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def say(sentence: str) -> None:
    """On standard error: standard output is for results."""
    print(sentence, file=sys.stderr, flush=True)


class Progress:
    """Says every few seconds how much of a long work is done, and how long the rest takes."""

    EVERY_S = 5.0

    def __init__(self, say: Callable[[str], None], done_is: str, total: int) -> None:
        self._say, self._done_is, self._total, self._done = say, done_is, total, 0
        self._begun = self._said = time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now >= self._said + self.EVERY_S and self._done < self._total:
            self._said = now
            left = (now - self._begun) / self._done * (self._total - self._done)
            counts = f"{self._done:,} of {self._total:,}"
            self._say(f"  {counts} {self._done_is}, {left:.0f} s left")


def run(app: App, argv: Sequence[str]) -> int:
    """Runs one command line of a recipe and returns its exit code (brimful.errors has them).

    The first rank reports an error in full, with the flags in place of Config's names. Every other
    rank prints a line, as it may be the only one to fail.
    """
    try:
        function, bound, _ = app.parse_args(list(argv), exit_on_error=False, print_error=False)
        return function(*bound.args, **bound.kwargs) or 0
    except CycloptsError as error:
        return _failed(
            UsageError(" ".join(str(error).split()), suggestion="--help lists all options."),
            app,
            argv,
        )
    except BrimfulError as error:
        return _failed(error, app, argv)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "recipes", "brimful", "brimful_inside", "brimful_train"):
            raise
        extra = app.name[0].rpartition(".")[2].partition("_")[0]  # of ood_dpo it is ood
        missing = UsageError(
            f"The Python package {package} is not installed.",
            "This recipe needs it.",
            f"In the clone: pip install '.[train,{extra}]'",
        )
        return _failed(missing, app, argv)
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    except BrokenPipeError:  # `... read folder | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _failed(error: BrimfulError, app: App, argv: Sequence[str]) -> int:
    ends_with(error)
    command = app.parse_commands(list(argv))[1][-1]
    arguments = (
        command.assemble_argument_collection() if command.default_command is not None else ()
    )
    flags = {".".join(("config", *argument.keys)): argument.name for argument in arguments}
    for sentence in (
        error.sentences() if is_first() else (f"rank {os.environ['RANK']}: {error.problem}",)
    ):
        say(
            re.sub(
                r"config(\.\w+)+", lambda match: flags.get(match.group(), match.group()), sentence
            )
        )
    return error.exit_code
