"""The workflows that publish, and the forms for reports: read as GitHub reads them.

actionlint reads more, and cannot be installed here: its package fetches a program when it is built.
"""

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [p for p in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if p.stem != "config"]
MAY = {"build": {"contents": "read"}, "publish": {"id-token": "write", "pages": "write"}}


def wrong(text: str) -> list[str]:
    """What must not stand in a workflow that publishes."""
    workflow = yaml.safe_load(text)
    says = [] if workflow["permissions"] == {} else ["it starts with permissions"]
    on = workflow.get("on", workflow.get(True))  # YAML 1.1 reads `on` as true
    if {*on} - {"push", "workflow_dispatch"} or {*on["push"]} != {"tags"}:
        says.append("others than tags start it")
    if "secrets." in text:
        says.append("it uses a secret")
    for name, job in workflow["jobs"].items():
        says += [f"{name} may {what}" for what in job["permissions"].items() - MAY[name].items()]
        if name == "publish" and (job["needs"] != "build" or "environment" not in job):
            says.append("publish needs a build and an environment")
        says += [said for step in job["steps"] for said in wrong_step(name, step)]
    return says


def wrong_step(job: str, step: dict[str, Any]) -> list[str]:
    run = step.get("run", "")
    says = ["it pastes an expression into a shell"] if "${{" in run else []
    if job == "publish" and run:
        says.append("publish runs a command")
    if not run and not re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", step["uses"]):
        says.append(f"{step['uses']} has no version")
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    says += [f"make {t}?" for t in re.findall(r"make ([a-z-]+)", run) if t not in targets]
    return says + [f"{p}?" for p in re.findall(r"\S+\.py\b", run) if not (ROOT / p).exists()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_publishes_what_a_tag_names_and_keeps_no_token(path: Path):
    assert wrong(path.read_text()) == []


def test_what_must_not_stand_there_is_found():
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    for old, new in (
        ("permissions: {}", "permissions: {contents: write}"),
        ('tags: ["v*"]', "branches: [main]"),
        ("make dist", "make dost"),
        ("make dist", "echo ${{ github.ref }}"),
        ("contents: read", "contents: write"),
        ("needs: build", "needs: []"),
        ("checkout@v4", "checkout"),
        ("      - uses: pypa", "      - run: env\n      - uses: pypa"),
        ("environment: pypi", "environment: ${{ secrets.PYPI }}"),
    ):
        assert old in text and wrong(text.replace(old, new)), new


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_asks_for_what_doctor_says(path: Path):
    fields = yaml.safe_load(path.read_text())["body"]
    (doctor,) = [f for f in fields if "brimful doctor --json" in f["attributes"]["label"]]
    assert doctor["validations"]["required"]
    assert "doctor --bundle" in doctor["attributes"]["description"]
