"""Files of settings that a script reads."""

import subprocess
import sys


def test_a_file_that_the_script_itself_wrote_asks_for_nothing(tmp_path):
    (tmp_path / "given.yaml").write_text("batch_size: 8\n")
    script = """
from brimful_inside.probe.script_text import config_files
config_files.watch()
with open("hparams.yaml", "w") as file:
    file.write("batch_size: 64\\n")
for path in ("hparams.yaml", "given.yaml"):
    open(path).close()
print([written.number for written in config_files.numbers()])
"""
    run = [sys.executable, "-c", script]
    said = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "['8']\n"


def test_modules_that_the_user_imports_take_no_place_of_a_file_of_settings(tmp_path):
    (tmp_path / "given.yaml").write_text("batch_size: 8\n")
    for number in range(70):
        (tmp_path / f"module{number}.py").write_text("")
    script = """
from brimful_inside.probe.script_text import config_files
config_files.watch()
for number in range(70):
    __import__("module%d" % number)
open("given.yaml").close()
print([written.number for written in config_files.numbers()])
"""
    (tmp_path / "train.py").write_text(script)
    run = [sys.executable, "train.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['8']\n"
