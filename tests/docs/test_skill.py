"""What the agents' skill names exists: options, fields, codes."""

import re
import shlex
from dataclasses import fields
from pathlib import Path

from brimful.cli.app import app
from brimful.cli.parse import parse
from brimful.values import Audit, CheckedJob, EffectiveBatch, Prediction, QueueRequest, Verdict

SKILL = Path(__file__).parents[2] / "skills" / "brimful" / "SKILL.md"


def commands(text: str) -> list[list[str]]:
    lines = re.findall(r"(?:`| {4})(brimful \w.*?)(?:`|$)", text, flags=re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines]


def table(text: str, heading: str) -> list[str]:
    """The names in the first column of the table below a heading."""
    rows = text.partition(f"### `{heading}`\n")[2].partition("\n#")[0]
    first = " ".join(re.findall(r"^\| (`.*?) \|", rows, flags=re.MULTILINE))
    return [name.split(".")[0] for name in re.findall(r"`([\w.]+)`", first)]


def test_every_command_is_one_that_brimful_understands():
    typed = commands(SKILL.read_text())
    assert {"predict", "audit", "check", "request"} <= {words[0] for words in typed}
    for words in typed:
        at = words.index("--") if "--" in words else len(words)
        parse(app, words[:at], words[at + 1 :])


def test_every_field_is_one_of_an_answer():
    text = SKILL.read_text()
    named = table(text, "predict")
    assert len(named) > 15
    assert {*named} - {field.name for field in fields(Prediction)} == {"record"}
    sections = text.split("### ")
    of = {section.split("`")[1]: section for section in sections if section.startswith("`")}
    for verb, names, value in (
        ("audit", ("requested", "effective", "findings"), Audit),
        ("audit", ("samples_per_step",), EffectiveBatch),
        ("check", ("exit_code", "failed", "grown"), CheckedJob),
        ("request", ("gpu", "cards", "cores", "host_bytes"), QueueRequest),
    ):
        assert {*names} <= {field.name for field in fields(value)}
        assert all(re.search(rf"`(\w+\.)?{name}\b", of[verb]) for name in names)
    assert all(f"`{verdict}`" in of["predict"] for verdict in Verdict)


def test_it_is_shorter_than_150_lines():
    assert len(SKILL.read_text().splitlines()) < 150
