"""The command of the user, and the settings that stand in it."""

from dataclasses import dataclass, field

from brimful.values.number import Source
from brimful_inside.wire import Place

Setting = int | float | str | bool


@dataclass(frozen=True)
class Command:
    """The user's argv, with ``{name}`` where a setting goes."""

    argv: tuple[str, ...]
    # setting -> the flag it was found behind
    found_flags: dict[str, str] = field(default_factory=dict)
    # placeholder -> what stood there in the user's own command
    given: dict[str, Setting] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # added to the child's environment
    # setting -> where the script has its number, where no flag takes it
    places: dict[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class EffectiveSetting:
    """One setting: what was requested, what is in force, and why."""

    name: str
    requested: Setting | None  # in the user's command or configuration; None: nothing
    effective: Setting | None
    why: str
    source: Source | None = None  # what the decision rests on; None: it rests on no number
