"""What predict, audit and tune start from: the command, the settings given, the device and its
budget.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brimful import command as commands
from brimful import masking
from brimful.decide.batch_size_place import AUTO, FLAG, LOADER, SCRIPT, require_choice
from brimful.decide.loading import EVAL_TIMES
from brimful.decide.run.settings import ACCUMULATION, BATCH_SIZE, EVAL_BATCH_SIZE
from brimful.errors import UsageError
from brimful.trials import devices
from brimful.trials.session import Options, Session, opened
from brimful.units import parse_batch_size
from brimful.values import Budget, Command, Device, Diagnostic, Objective, Setting


@dataclass(frozen=True)
class Start:
    """A command as a verb starts with it."""

    command: Command
    given: dict[str, Setting]  # with --set
    asked: int | None  # the batch size of the command or of --set; None: it is left open
    device: Device
    budget: Budget
    options: Options
    # where brimful replaced a bare `python`, or took one of several cards of a name
    advice: tuple[Diagnostic, ...]
    sets: tuple[str, ...] = (BATCH_SIZE,)  # settings that the verb gives its trials
    # All cards that were asked about; `device` and `budget` are the first.
    several: tuple[tuple[Device, Budget], ...] = ()

    @contextmanager
    def session(self, verb: str, objective: Objective | None = None) -> Iterator[Session]:
        device, budget = self.device, self.budget
        if len(self.several) > 1:
            device = Device("imaginary", f"{len(self.several)} cards (imaginary)")
            budget = None
        with opened(verb, self.command, device, self.options, budget, objective) as session:
            for note in self.advice:
                session.note(note)
            yield session

    @property
    def finds_places(self) -> bool:
        """Whether brimful sets the batch size of a script without a flag by itself."""
        return self.options.batch_size_from in (AUTO, SCRIPT, LOADER)

    def values(
        self, set_elsewhere: tuple[str, ...] = (), **defaults: Setting
    ) -> dict[str, Setting]:
        """A trial's settings: those given, those in the command, and `defaults` where a placeholder
        stands open.

        Raises UsageError for a placeholder that stays open, and for a given setting that reaches
        nothing, but those that are `set_elsewhere`, in the script or at its loaders.
        """
        refuse_unreachable(
            self.command,
            {name: value for name, value in self.given.items() if name not in set_elsewhere},
        )
        placeholders = commands.placeholders(self.command)
        values = {
            name: self.command.given[name] for name in placeholders if name in self.command.given
        } | self.given
        for name, value in defaults.items():
            if name in placeholders:
                values.setdefault(name, value)
        commands.fill(self.command, values)
        return values

    def other_values(
        self, set_elsewhere: tuple[str, ...] = (BATCH_SIZE, EVAL_BATCH_SIZE), **defaults: Setting
    ) -> dict[str, Setting]:
        """As `values`, without what the verb sets, and an open evaluation batch, which follows the
        batch size (`following`).
        """
        elsewhere = set_elsewhere if self.finds_places and BATCH_SIZE in self.sets else ()
        # A run starts with an accumulation of 1.
        ones = dict.fromkeys((*self.sets, EVAL_BATCH_SIZE, ACCUMULATION), 1)
        values = self.values(elsewhere, **(ones | defaults))
        left_out = {*self.sets, *({EVAL_BATCH_SIZE} - self.given.keys())}
        return {name: value for name, value in values.items() if name not in left_out}


def start(
    argv: Sequence[str],
    settings: Mapping[str, Setting] | None,
    options: Options | None,
    device: str,
    request: devices.CardRequest,
    takes_several: bool = False,
    sets: tuple[str, ...] = (BATCH_SIZE,),
) -> Start:
    """`sets`: what the verb gives its trials, in place of what the command says; it has to have a
    place, but the batch size.

    Raises UsageError for what cannot be meant, NoSuchDevice for an unknown card or a device that is
    not here."""
    options, given = options or Options(), dict(settings or {})
    masking.learn(argv, given)
    wants = require_choice(options.batch_size_from)
    command, advice = devices.with_torch(
        commands.parse(tuple(argv), opens_batch_size=wants in (AUTO, FLAG))
    )
    for name in sets:
        command = _opened(command, name, given)
    batch_size = given.get(BATCH_SIZE, command.given.get(BATCH_SIZE))
    asked = None if batch_size is None else parse_batch_size(str(batch_size))
    cards = devices.cards(request, options.home)
    if len(cards) > 1 and not takes_several:
        raise UsageError(
            f"--gpu {request.names} names {len(cards)} cards",
            "this verb works on one kind",
            "ask `brimful predict` which one to take, then name that",
        )
    several = []
    for kind in cards or (None,):
        chosen, accelerator = devices.choose(command, device, kind)
        several.append((chosen, devices.budget_for(chosen, accelerator, options.budget)))
    first, budget = several[0]
    notes = (*([advice] if advice else []), *devices.which_was_taken(request))
    return Start(command, given, asked, first, budget, options, notes, sets, tuple(several))


def _opened(command: Command, name: str, given: Mapping[str, Setting]) -> Command:
    """The command with a place for a setting that a verb gives its trials. Raises UsageError where
    there is none.
    """
    if name == BATCH_SIZE:
        return command
    command = commands.opened(command, name, whole=False)
    if takes(command, name):
        return command
    raise commands.no_place_for(
        command,
        name,
        f"you asked about {name}, and the command has no {{{name}}} and no "
        f"--{name.replace('_', '-')} with a value",
    )


def takes(command: Command, name: str = BATCH_SIZE) -> bool:
    """Whether a setting can be given to the script: by a placeholder, a known flag, or
    brimful.setting inside.
    """
    opened = (*commands.placeholders(command), *command.places)
    return name in opened or any(commands.says_inside(text, name) for text in _texts(command))


def following(
    command: Command, settings: Mapping[str, Setting], batch_size: Setting | None
) -> dict[str, Setting]:
    """What an open {eval_batch_size} is at a batch size: evaluation keeps no activations."""
    if not isinstance(batch_size, int):
        return {}
    is_open = EVAL_BATCH_SIZE in commands.placeholders(command) and EVAL_BATCH_SIZE not in settings
    return {EVAL_BATCH_SIZE: EVAL_TIMES * batch_size} if is_open else {}


def refuse_unreachable(command: Command, given: Mapping[str, Setting]) -> None:
    """Raises UsageError for a given setting that has no placeholder, unless a script may read it
    (brimful.setting).
    """
    texts, opened = _texts(command), commands.placeholders(command)
    name = next((name for name in given if name not in opened), None)
    if name is not None and texts and not any("brimful" in text for text in texts):
        problem = f"you gave --set {name}=…, and the command has no {{{name}}}"
        raise commands.no_place_for(command, name, problem)


def _texts(command: Command) -> list[str]:
    """The scripts that the command names, as far as they can be read."""
    paths = filter(Path.is_file, commands.scripts(command))
    return [path.read_text(errors="replace") for path in paths if path.suffix == ".py"]
