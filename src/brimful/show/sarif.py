"""The findings of an audit as SARIF 2.1.0, the format of GitHub's and GitLab's code scanning."""

from pathlib import Path
from urllib.parse import quote

from brimful import codec
from brimful.values import Diagnostic, Record


def render_sarif(record: Record) -> str:
    """Each finding at its line, else at the script that the command names. Paths are relative to
    the folder where the command was started."""
    assert record.audit is not None and record.opened.machine is not None
    findings = record.audit.findings
    driver = {
        "name": "brimful",
        "version": record.opened.machine.brimful_version,
        "rules": list({finding.code: _rule(finding) for finding in findings}.values()),
    }
    results = [
        {
            "ruleId": finding.code,
            "level": "warning",
            "message": {
                "text": f"{finding.problem} {finding.explanation} {finding.suggestion}".strip()
            },
            "locations": [{"physicalLocation": _place(finding, record)}],
        }
        for finding in findings
    ]
    runs = [{"tool": {"driver": driver}, "results": results}]
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return codec.to_json({"$schema": schema, "version": "2.1.0", "runs": runs}) + "\n"


def _rule(finding: Diagnostic) -> dict[str, str | dict[str, str]]:
    """GitHub requires the three texts of a rule; none may be empty."""
    return {
        "id": finding.code,
        "shortDescription": {"text": finding.problem},
        "fullDescription": {"text": f"{finding.problem} {finding.explanation}".strip()},
        "help": {"text": finding.suggestion or finding.explanation or finding.problem},
    }


def _place(finding: Diagnostic, record: Record) -> dict[str, dict[str, str | int]]:
    """The file that a finding names among those that the script loaded, and its line; GitHub
    requires one, so the first where none is known."""
    folder = Path(record.opened.working_folder or ".").resolve()
    name, _, line = finding.where.partition(":")
    words = record.opened.command.argv if record.opened.command is not None else ()
    files = [path for trial in record.trials for r in trial.reports for path in r.sources]
    named = [path for path in files if Path(path).name == name]
    scripts = [word for word in words if word.endswith(".py")]
    path = folder.joinpath(next(iter([*named, *scripts, *files]), ".")).resolve()
    below = path.is_relative_to(folder)
    uri = quote(path.relative_to(folder).as_posix()) if below else path.as_uri()
    first = int(line) if named and line else 1
    return {"artifactLocation": {"uri": uri}, "region": {"startLine": first}}
