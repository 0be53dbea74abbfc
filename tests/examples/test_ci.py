"""What pull requests are checked with: the action's steps, run as they stand, and what it writes;
the examples for GitHub, GitLab and pre-commit.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brimful.end_to_end.helper import script

yaml = pytest.importorskip("yaml")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
COMMENT = yaml.safe_load((ROOT / "comment" / "action.yml").read_text("utf-8"))
CI = ROOT / "examples" / "ci"
JOBS = """
[jobs.small]
command = "python train.py --batch-size 64"
gpu = "l4"
peak_allocated = "+2 %"
"""
# GitHub's command line as far as the action calls it: comments are files, numbered; those of others
# than the token's owner begin with another number.
GH = """#!{python}
import json, os, pathlib, sys
words, folder = sys.argv[1:], pathlib.Path({comments!r})
with open(folder / "calls", "a") as file:
    print(*words, file=file)
if os.environ.get("REFUSES"):
    sys.exit("HTTP 403: Resource not accessible by integration")
assert words[0] == "api" and os.environ["GH_TOKEN"] == "the token"
if "graphql" in words:
    assert {{"number=7", "owner=me", "name=mine"}} <= set(words)
    assert "viewerDidAuthor and" in words[-1]
    for path in folder.glob("*.md"):
        if path.read_text().startswith(os.environ["first"]) and not path.stem.startswith("9"):
            print(path.stem)
    sys.exit()
[body] = [word.partition("=@")[2] for word in words if word.startswith("body=@")]
name = str(len(list(folder.glob("*.md"))))
if "PATCH" in words:
    name = words[words.index("PATCH") + 1].split("/")[-1]
(folder / (name + ".md")).write_text(pathlib.Path(body).read_text())
"""


class Runner:
    """A fresh folder in which the action's steps run with bash, as GitHub starts it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.comments, self.outputs = folder / "repo", folder / "comments", {}
        script(self.folder)
        (self.folder / "brimful.toml").write_text(JOBS)
        for name in ("comments", "bin", "temp"):
            (folder / name).mkdir()
        gh = folder / "bin" / "gh"
        gh.write_text(GH.format(python=sys.executable, comments=str(self.comments)))
        gh.chmod(0o755)
        path = os.pathsep.join(
            (str(gh.parent), str(Path(sys.executable).parent), "/usr/bin", "/bin")
        )
        self.environment = {
            "PATH": path,
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "RUNNER_TEMP": str(folder / "temp"),
            "GITHUB_REPOSITORY": "me/mine",
            "GITHUB_OUTPUT": str(folder / "temp" / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "temp" / "summary"),
        }

    def value(self, expression: str) -> str:
        known = {
            "inputs.jobs": "",
            "inputs.working-directory": str(self.folder),
            "inputs.install": "nothing",
            "inputs.token": "the token",
            "inputs.name": "",
            "inputs.body": self.outputs.get("comment", ""),
            "github.event.pull_request.number": "7",
            "steps.check.outputs.exit-code": self.outputs.get("exit-code", ""),
        }
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda name: known[name[1]], expression)

    def run(self, step: dict, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {name: self.value(text) for name, text in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.value(step.get("working-directory", str(self.folder))),
            env={**self.environment, **environment, **more},
            capture_output=True,
            text=True,
            timeout=240,
        )
        output = Path(self.environment["GITHUB_OUTPUT"])
        text = output.read_text() if output.exists() else ""
        pairs = re.findall(r"^([\w-]+)(?:=(.*)|<<(.*)\n((?:.*\n)*?)\3)$", text, flags=re.MULTILINE)
        self.outputs = {name: value or rest for name, value, _, rest in pairs}
        return done

    def action(self) -> int:
        """All steps of both actions; the exit code of the first."""
        for step in ACTION["runs"]["steps"]:
            done = self.run(step)
            if step["name"] != "Result":
                assert done.returncode == 0, done.stderr
        (comment,) = COMMENT["runs"]["steps"]
        assert self.run(comment).returncode == 0
        return done.returncode

    def written(self) -> list[str]:
        return [path.read_text() for path in sorted(self.comments.glob("*.md"))]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_every_step_names_bash_and_reads_inputs_by_its_environment_alone():
    inputs = {"jobs", "working-directory", "install"}, {"body", "name", "token"}
    for action, known in zip((ACTION, COMMENT), inputs, strict=True):
        for step in action["runs"]["steps"]:
            assert step["shell"] == "bash" and "${{" not in step["run"]
        text = json.dumps(action["runs"])
        assert set(action["inputs"]) == set(re.findall(r"inputs\.([\w-]+)", text)) == known


def test_what_runs_the_script_of_a_pull_request_has_no_token_and_no_files_of_the_runner(runner):
    text = json.dumps(
        [ACTION, yaml.safe_load((CI / "github.yml").read_text("utf-8"))["jobs"]["memory"]]
    )
    assert "token" not in text and "write" not in text
    program = runner.folder.parent / "bin" / "brimful"
    program.write_text("#!/bin/bash\nenv >> seen; echo '```'; echo '````' >&2; exit 5\n")
    program.chmod(0o755)
    files = {f"GITHUB_{name}": "/dev/null" for name in ("ENV", "PATH", "STATE")}
    (step,) = [step for step in ACTION["runs"]["steps"] if step["name"] == "Predict"]
    runner.run(step, **files)
    seen = (runner.folder / "seen").read_text()
    assert "RUNNER_TEMP=" in seen and not re.search(
        "^GITHUB_(ENV|PATH|OUTPUT|STA|STEP)", seen, re.M
    )


def test_a_log_with_backticks_does_not_end_its_fence_and_comments_of_others_stay(runner: Runner):
    (runner.folder / "brimful.toml").write_text(JOBS.replace("small", '"a```b"'))
    forged = runner.comments / "90.md"
    forged.write_text("<!-- brimful check  -->\nof somebody else")
    assert runner.action() != 0
    assert forged.read_text().endswith("of somebody else")
    _, comment = sorted(runner.written(), key=lambda text: "of somebody else" not in text)
    fence = re.search("^`{4,}$", comment, re.M)
    assert fence and "```b" in comment and comment.rstrip().endswith(f"\n{fence[0]}")
    assert len(re.findall(f"^{fence[0]}$", comment, re.M)) == 2


@pytest.mark.heavy
def test_a_pull_request_gets_one_comment_with_the_line_that_takes_more(runner: Runner):
    update = {"run": "brimful check --update"}
    assert runner.run(update).returncode == 0
    train = runner.folder / "train.py"
    train.write_text(train.read_text().replace("256", "2560"))
    assert runner.action() == 3
    [comment] = runner.written()
    assert comment.startswith("<!-- brimful check ")
    assert (
        "**brimful check**: 1 of 1 job does not pass the limits in brimful.toml. small: " in comment
    )
    assert "| small | allocated peak |" in comment and "| +2 % | too much |" in comment
    assert "What holds more at the peak, small:" in comment
    assert re.search(r"\+[\d.]+ [KM]iB: \w+ of .*, train.py:\d+", comment.replace("\\", ""))
    assert Path(runner.environment["GITHUB_STEP_SUMMARY"]).read_text().strip() in comment

    train.write_text(train.read_text().replace("2560", "256"))
    assert runner.action() == 0
    [comment] = runner.written()
    assert "1 job passes the limits in brimful.toml." in comment, "the one that was there"


def test_without_a_baseline_the_comment_says_what_to_do(runner: Runner):
    assert runner.action() == 2
    [comment] = runner.written()
    assert "ended with exit code 2" in comment and "brimful check --update small" in comment


def test_a_token_that_may_not_write_is_a_warning(runner: Runner):
    (check,) = [step for step in ACTION["runs"]["steps"] if step["name"] == "Predict"]
    (comment,) = COMMENT["runs"]["steps"]
    runner.run(check)
    done = runner.run(comment, REFUSES="1")
    assert done.returncode == 0 and "::warning::brimful could not comment" in done.stdout
    assert runner.written() == []


def test_the_examples_are_yaml_that_call_what_there_is():
    github = yaml.safe_load((CI / "github.yml").read_text("utf-8"))
    for name, job in github["jobs"].items():
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        path = used[-1].partition("@")[0].partition("brimful/")[2]
        assert (ROOT / path / "action.yml").is_file()
        assert (job["permissions"] == {"pull-requests": "write"}) == (name == "comment")
    gitlab = yaml.safe_load((CI / "gitlab.yml").read_text("utf-8"))["gpu-memory"]
    assert "brimful check --markdown > brimful.md || code=$?" in gitlab["script"]
    assert gitlab["artifacts"]["paths"] == ["brimful.md"]
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert hook["entry"] == "brimful check" and not hook["pass_filenames"]


def test_gitlabs_script_ends_with_the_exit_code_and_leaves_the_table(runner: Runner):
    gitlab = yaml.safe_load((CI / "gitlab.yml").read_text("utf-8"))["gpu-memory"]
    script = "\n".join(line for line in gitlab["script"] if not line.startswith("pip "))
    (runner.folder / "brimful.toml").unlink()
    done = runner.run({"run": script})
    assert done.returncode == 2 and (runner.folder / "brimful.md").exists()
