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
ACTION = yaml.safe_load((ROOT / ".github/actions/brimful/action.yml").read_text("utf-8"))
CI = ROOT / "examples" / "ci"
JOBS = """
[jobs.small]
command = "python train.py --batch-size 64"
gpu = "l4"
peak_allocated = "+2 %"
"""
# GitHub's command line as far as the action calls it: comments are files, numbered.
GH = """#!{python}
import json, os, pathlib, sys
words, folder = sys.argv[1:], pathlib.Path({comments!r})
with open(folder / "calls", "a") as file:
    print(*words, file=file)
if os.environ.get("REFUSES"):
    sys.exit("HTTP 403: Resource not accessible by integration")
assert words[0] == "api" and os.environ["GH_TOKEN"] == "the token"
if "--paginate" in words:
    assert "repos/me/mine/issues/7/comments" in words
    for path in folder.glob("*.md"):
        if path.read_text().startswith(os.environ["first"]):
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
        lines = output.read_text().splitlines() if output.exists() else []
        self.outputs = dict(line.split("=", 1) for line in lines)
        return done

    def action(self) -> int:
        """All steps; the exit code of the last one."""
        for step in ACTION["runs"]["steps"]:
            done = self.run(step)
            if step["name"] != "Result":
                assert done.returncode == 0, done.stderr
        return done.returncode

    def written(self) -> list[str]:
        return [path.read_text() for path in sorted(self.comments.glob("*.md"))]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_every_step_names_bash_and_reads_inputs_by_its_environment_alone():
    for step in ACTION["runs"]["steps"]:
        assert step["shell"] == "bash" and "${{" not in step["run"]
    known = {"jobs", "working-directory", "install", "comment", "token"}
    text = json.dumps(ACTION["runs"])
    assert set(ACTION["inputs"]) == set(re.findall(r"inputs\.([\w-]+)", text)) == known


@pytest.mark.heavy
def test_a_pull_request_gets_one_comment_with_the_line_that_takes_more(runner: Runner):
    update = {"run": "brimful check --update"}
    assert runner.run(update).returncode == 0
    train = runner.folder / "train.py"
    train.write_text(train.read_text().replace("256", "2560"))
    assert runner.action() == 3
    [comment] = runner.written()
    assert comment.startswith("<!-- brimful check ")
    assert "**brimful check**: 1 of 1 job is not as brimful.toml asks. small: " in comment
    assert "| small | allocated peak |" in comment and "| +2 % | too much |" in comment
    assert "What holds more at the peak, small:" in comment
    assert re.search(r"\+[\d.]+ [KM]iB: \w+ of .*, train.py:\d+", comment.replace("\\", ""))
    assert comment == Path(runner.environment["GITHUB_STEP_SUMMARY"]).read_text()

    train.write_text(train.read_text().replace("2560", "256"))
    assert runner.action() == 0
    [comment] = runner.written()
    assert "1 job is as brimful.toml asks." in comment, "the one that was there"


def test_without_a_baseline_the_comment_says_what_to_do(runner: Runner):
    assert runner.action() == 2
    [comment] = runner.written()
    assert "ended with exit code 2" in comment and "brimful check --update small" in comment


def test_a_token_that_may_not_write_is_a_warning(runner: Runner):
    check, comment = (
        step for step in ACTION["runs"]["steps"] if step["name"] in ("Predict", "Comment")
    )
    runner.run(check)
    done = runner.run(comment, REFUSES="1")
    assert done.returncode == 0 and "::warning::brimful could not comment" in done.stdout
    assert runner.written() == []


def test_the_examples_are_yaml_that_call_what_there_is():
    github = yaml.safe_load((CI / "github.yml").read_text("utf-8"))
    used = [step["uses"] for step in github["jobs"]["memory"]["steps"] if "uses" in step]
    path = used[-1].partition("@")[0].partition("brimful/")[2]
    assert (ROOT / path / "action.yml").is_file()
    assert github["permissions"]["pull-requests"] == "write"
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
