"""Growth is a decision: verbs and options, and the statements of each room, stand in `frozen.toml`.

Who adds, raises the number in the same commit, with the reason and what was taken out for it.
"""

import ast
import tomllib
from pathlib import Path

from brimful.cli.app import app

ROOT = Path(__file__).parents[1]
FROZEN = tomllib.loads(Path(__file__).with_name("frozen.toml").read_text())
ROOMS_OF = ("src/brimful", "src/brimful_inside")  # each folder in them is a room, and their files
WHOLE = ("src/brimful_train", "recipes", "tests", "bench")


def options() -> dict[str, list[str]]:
    return {
        name: sorted(
            {
                flag
                for argument in app[name].assemble_argument_collection()
                if argument.parse
                for flag in argument.names
                if flag.startswith("-")
            }
        )
        for name in app
        if not name.startswith("-")
    }


def statements(path: Path) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(path.read_text())))


def rooms() -> dict[str, int]:
    counts: dict[str, int] = {}
    for top in (*ROOMS_OF, *WHOLE):
        for path in (ROOT / top).rglob("*.py"):
            inner = path.relative_to(ROOT / top).parts
            room = f"{top}/{inner[0]}" if top in ROOMS_OF and len(inner) > 1 else top
            counts[room] = counts.get(room, 0) + statements(path)
    return counts


def test_the_options_of_each_verb_are_those_of_the_frozen_list() -> None:
    assert options() == {verb: flags.split() for verb, flags in FROZEN["options"].items()}


def test_all_verbs_together_have_at_most_45_options() -> None:
    assert len({flag for flags in options().values() for flag in flags}) <= 45


def test_no_room_holds_more_statements_than_its_frozen_number() -> None:
    counts, limits = rooms(), FROZEN["statements"]
    above = {room: number for room, number in counts.items() if number > limits.get(room, 0)}
    assert not above, "take something out, or raise the number and say why"
    assert limits.keys() == counts.keys(), "a room that has gone has no number"
