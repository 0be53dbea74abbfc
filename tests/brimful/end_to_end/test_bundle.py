"""`doctor --bundle` after a call that failed: what the archive holds, and what it does not."""

import json
import socket
import tarfile
from pathlib import Path

from tests.brimful.end_to_end.helper import brimful, python, script

SECRET = "hf_abcdefghijklmnopqrstuvwx"
FAILING = f"""
import torch
print("a row of somebody's data")
raise RuntimeError("no such column, token {SECRET}")
"""


def test_the_bundle_of_a_failed_call_has_the_error_and_no_output_or_secret(tmp_path):
    path = script(tmp_path, FAILING)
    words = ("--gpu", "t4", *python(path, "--api-key", SECRET))
    failed = brimful(tmp_path, "predict", *words, code=5)
    done = brimful(tmp_path, "doctor", "--bundle", "--json", code=0)
    with tarfile.open(tmp_path / done.json["file"]) as archive:
        parts = {
            Path(*Path(member.name).parts[1:]).as_posix(): archive.extractfile(member).read()
            for member in archive.getmembers()
        }
    assert {name: len(content) for name, content in parts.items()} == done.json["bytes"]
    listed = [line.split()[-1] for line in done.err.splitlines() if " bytes  " in line]
    assert listed == list(parts), "what is in it was listed"
    assert {"record.jsonl", "doctor.json", "trial-001/stderr.txt"} <= parts.keys()
    text = b"\n".join(parts.values()).decode()
    assert "no such column" in text
    assert json.loads(parts["doctor.json"])["machine"]["brimful_version"]
    assert SECRET not in text and "somebody's data" not in text
    assert socket.gethostname() not in text and str(Path.home()) not in text
    assert "somebody's data" in (failed.trial / "stdout.txt").read_text(), "it stays here"


def test_a_bundle_belongs_to_no_other_option_and_needs_a_call(tmp_path):
    assert "stands alone" in brimful(tmp_path, "doctor", "--bundle", "--calibrate", code=2).err
    assert "no record" in brimful(tmp_path, "doctor", "--bundle", code=2).err
