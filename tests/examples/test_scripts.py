"""The examples are ordinary scripts: each one runs alone, without brimful on its path."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TRAPS = sorted((EXAMPLES / "traps").glob("*.py"))


def run_script(script: Path, *flags: str, folder: Path, timeout: float = 240.0) -> str:
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(script), *flags],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


#: Runs each script in a process that has imported torch: what it writes to NAME.txt.
EACH = """
import os, runpy, sys, torch
for path in sys.argv[1:]:
    if os.fork() == 0:
        sys.argv = [path]
        sys.stdout = open(os.path.basename(path) + ".txt", "w")
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    if os.wait()[1]:
        sys.exit(f"{path} failed")
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """What each trap prints."""
    folder = tmp_path_factory.mktemp("traps")
    each = folder / "each.py"
    each.write_text(EACH)
    run_script(each, *map(str, TRAPS), folder=folder)
    return {path: (folder / f"{path.name}.txt").read_text() for path in TRAPS}


@pytest.mark.parametrize("script", TRAPS, ids=lambda path: path.stem)
def test_each_trap_runs_alone_and_learns_something_finite(script: Path, printed: dict[Path, str]):
    words = printed[script]
    losses = [
        float(number) for number in re.findall(r"(?:loss|critic|generator) (-?[\d.]+)", words)
    ]
    assert losses and all(0.0 <= loss < 10.0 for loss in losses), words


def test_the_example_scripts_know_nothing_of_brimful():
    """Those are in folders; beside these lie the demonstrations, which run brimful on them."""
    imports = re.compile(r"^\s*(import|from) brimful", flags=re.MULTILINE)
    assert [
        script
        for script in EXAMPLES.glob("*/*.py")
        if imports.search(script.read_text(encoding="utf-8"))
    ] == []


def test_every_trap_is_listed_in_the_readme():
    readme = (EXAMPLES / "traps" / "README.md").read_text(encoding="utf-8")
    assert [script.name for script in TRAPS if f"`{script.name}`" not in readme] == []


def test_saves_best_takes_up_its_own_file_on_the_second_run(tmp_path: Path):
    script = EXAMPLES / "traps" / "saves_best.py"
    assert "taken up" not in run_script(script, folder=tmp_path)
    assert (tmp_path / "best.pt").stat().st_size > 0
    assert "taken up at loss" in run_script(script, folder=tmp_path)


def test_the_captcha_script_draws_trains_and_saves(tmp_path: Path):
    flags = ["--samples", "64", "--batch-size", "16", "--workers", "0"]
    flags += ["--data", str(tmp_path / "data"), "--out", str(tmp_path)]
    words = run_script(EXAMPLES / "captcha" / "train.py", *flags, folder=tmp_path)
    assert "19.07 million parameters on cpu" in words
    assert re.search(r"epoch 1: loss [\d.]+, exact [\d.]+%, characters [\d.]+%", words)
    assert (tmp_path / "best.pt").exists()
    drawn = sorted(path.name for path in (tmp_path / "data").rglob("*.png"))
    assert len(drawn) == 64 + 8
    assert all(re.fullmatch(r"[0-9A-Z]{4}_\d{6}\.png", name) for name in drawn)


def test_the_gpt_script_learns_from_the_dialogues(tmp_path: Path):
    flags = ["--layers", "1", "--width", "64", "--context", "32", "--words", "1000"]
    flags += ["--batch-size", "256", "--workers", "0"]
    words = run_script(EXAMPLES / "gpt" / "train.py", *flags, folder=tmp_path)
    loss = re.search(r"epoch 1: loss ([\d.]+)", words)
    assert loss and 0.0 < float(loss[1]) < 7.0, words


def test_the_same_seed_draws_the_same_captchas_to_the_byte(tmp_path: Path):
    program = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import train\n"
        "for name in ('a', 'b'): train.draw_captchas(pathlib.Path(name), 5, 'seed 7')\n"
        "train.draw_captchas(pathlib.Path('c'), 5, 'seed 8')\n"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLES / "captcha")],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    pictures = {
        folder: {p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()} for folder in "abc"
    }
    assert pictures["a"] == pictures["b"] and len(pictures["a"]) == 5
    assert pictures["a"].keys() != pictures["c"].keys()


@pytest.mark.heavy
def test_the_chat_script_trains_with_the_trainer(tmp_path: Path):
    flags = [
        "--conversations",
        "32",
        "--layers",
        "1",
        "--width",
        "32",
        "--output_dir",
        str(tmp_path / "out"),
        "--use_cpu",
    ]
    words = run_script(EXAMPLES / "chat" / "train.py", *flags, folder=tmp_path)
    assert re.search(r"'eval_loss': [\d.]+", words)


@pytest.mark.heavy
def test_the_lightning_script_learns_its_stripes(tmp_path: Path):
    words = run_script(
        EXAMPLES / "lightning" / "train.py",
        "--samples",
        "1024",
        "--out",
        str(tmp_path),
        folder=tmp_path,
    )
    accuracy = re.search(r"accuracy ([\d.]+)%", words)
    assert accuracy and float(accuracy[1]) > 50.0, words
