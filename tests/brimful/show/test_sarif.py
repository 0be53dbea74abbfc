"""Findings as SARIF: what the schema of version 2.1.0 requires, and each at its file and line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.show.sarif import render_sarif
from brimful.values import Diagnostic, Record
from tests.brimful.show import product

# Of the published schema (sarif-schema-2.1.0.json, OASIS): the required properties of each object
# that we write, and those that GitHub's code scanning wants besides.
REQUIRED = {
    "log": {"version", "runs"},
    "run": {"tool"},
    "tool": {"driver"},
    "driver": {"name"},
    "rule": {"id"},
    "result": {"message"},
}
OF_GITHUB = {"log": {"$schema"}, "run": {"results"}, "driver": {"rules"}}
OF_GITHUB |= {"result": {"ruleId", "locations"}}
OF_GITHUB |= {"rule": {"shortDescription", "fullDescription", "help"}}


def lacking(log: dict) -> set[str]:
    """What an object lacks of what is required."""
    objects = [("log", log)]
    for run in log["runs"]:
        objects += [("run", run), ("tool", run["tool"]), ("driver", run["tool"]["driver"])]
        objects += [("rule", rule) for rule in run["tool"]["driver"]["rules"]]
        objects += [("result", result) for result in run["results"]]
    required = {name: REQUIRED[name] | OF_GITHUB.get(name, set()) for name in REQUIRED}
    return {f"{name}.{key}" for name, part in objects for key in required[name] - part.keys()}


def audited(folder: Path, where: str, sources: list[str]) -> Record:
    """An audit with one finding at a line, of a script that loaded these files."""
    record = product.audit_record()
    [finding] = record.audit.findings
    audit = replace(record.audit, findings=(replace(finding, where=where),))
    [trial] = record.trials
    trial = replace(trial, reports=(replace(trial.reports[0], sources=sources),))
    opened = replace(record.opened, working_folder=str(folder))
    return replace(record, audit=audit, trials=(trial,), opened=opened)


def place(record: Record) -> dict:
    [result] = json.loads(render_sarif(record))["runs"][0]["results"]
    [location] = result["locations"]
    return location["physicalLocation"]


def test_the_log_has_all_that_the_schema_and_githubs_code_scanning_require(tmp_path: Path):
    log = json.loads(render_sarif(audited(tmp_path, "loader.py:7", [])))
    assert lacking(log) == set()
    assert log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    run = log["runs"][0]
    [result] = run["results"]
    assert result["level"] in ("none", "note", "warning", "error")
    assert result["ruleId"] in {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert result["message"]["text"].startswith("You asked for a batch size of 64")
    del run["tool"]["driver"]["name"], result["message"]
    assert lacking(log) == {"driver.name", "result.message"}


@pytest.mark.parametrize("suggestion", ["Look for min().", ""])
def test_a_rule_says_what_its_finding_says_and_has_no_empty_text(tmp_path: Path, suggestion: str):
    record = audited(tmp_path, "", [])
    finding = Diagnostic("hidden-cap", "It is capped.", "Memory is that of 2.", suggestion)
    record = replace(record, audit=replace(record.audit, findings=(finding,)))
    assert json.loads(render_sarif(record))["runs"][0]["tool"]["driver"]["rules"] == [
        {
            "id": "hidden-cap",
            "shortDescription": {"text": "It is capped."},
            "fullDescription": {"text": "It is capped. Memory is that of 2."},
            "help": {"text": suggestion or "Memory is that of 2."},
        }
    ]


def test_a_sound_script_has_a_log_without_results():
    log = json.loads(render_sarif(product.clean_audit_record()))
    assert log["runs"][0]["results"] == [] and lacking(log) == set()


def test_a_finding_is_at_its_line_in_the_file_of_that_name(tmp_path: Path):
    files = [str(tmp_path / name) for name in ("train.py", "my data/loader.py")]
    assert place(audited(tmp_path, "loader.py:7", files)) == {
        "artifactLocation": {"uri": "my%20data/loader.py"},
        "region": {"startLine": 7},
    }


@pytest.mark.parametrize("where", ["", "train.py", "elsewhere.py:7"])
def test_a_finding_without_a_line_is_at_the_first_of_the_script(tmp_path: Path, where: str):
    assert place(audited(tmp_path, where, [str(tmp_path / "train.py")])) == {
        "artifactLocation": {"uri": "train.py"},
        "region": {"startLine": 1},
    }


def test_a_file_that_lies_elsewhere_has_an_absolute_uri(tmp_path: Path):
    uri = place(audited(tmp_path / "work", "loader.py:7", [str(tmp_path / "loader.py")]))
    assert uri["artifactLocation"]["uri"] == (tmp_path / "loader.py").as_uri()
