"""Predicts programs in environments of other Pythons, torches and Transformers, and compares their
peaks byte by byte with those of this one: `make test-versions`.

Each environment is made below .venv-versions/ (5 to 7 GB where torch is a CUDA build) and kept
until that folder is removed; where its Python is not installed, it is named and left out. A peak
may differ from this environment's by what `KNOWN` has for it, to the byte, and by nothing else. The
tool itself is installed on other Pythons as well, and predicts a script of another environment.
What came out is kept in bench/results/versions.json, and docs/how/versions.md is written anew.
"""

import datetime
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bench import harness
from bench.harness import MIB
from bench.programs_page import VERSIONS_PAGE, VERSIONS_RESULT, keep
from bench.run_scripts import TIME_LIMIT_S, versions
from bench.scripts_table import by_key
from brimful_inside.simulator.allocator_settings import KEYS_SINCE, NAMES
from brimful_inside.simulator.workspaces import torch_release

FOLDER = harness.ROOT / ".venv-versions"
PROGRAMS = (
    *("mlp", "lstm_lm", "checkpointed_transformer", "cuda_graphs", "vit_ema"),
    *("unet_segmentation", "dcgan", "contrastive", "trainer_gpt2"),
)
PACKAGES = ("accelerate", "numpy", "torch", "transformers")
PEAK = ("allocated_bytes", "reserved_bytes")


@dataclass(frozen=True)
class Environment:
    """Of a script. What pip is asked for; without `torch` it is this environment with another
    Transformers, without both this environment itself.
    """

    label: str
    python: str = ""  # "" is the one that runs
    torch: str = ""
    transformers: str = ""
    programs: tuple[str, ...] = PROGRAMS


BASELINE = Environment("this environment")
# Transformers as in constraints.txt; with an older Python the newest that runs there.
ENVIRONMENTS = (
    Environment("Python 3.9, torch 2.8", "3.9", "torch==2.8.0", "transformers==4.57.6"),
    Environment("Python 3.10, torch 2.6", "3.10", "torch==2.6.0", "transformers==5.20.2"),
    Environment("Python 3.12, torch 2.11", "3.12", "torch==2.11.0", "transformers==5.23.0"),
    Environment("Python 3.13, torch 2.9", "3.13", "torch==2.9.1", "transformers==5.23.0"),
    Environment("Python 3.13, newest torch", "3.13", "torch", "transformers==5.23.0"),
    Environment("Transformers of a year ago", "", "", "transformers==4.57.3", ("trainer_gpt2",)),
)
# Pythons on which brimful itself is installed, and what it predicts there.
TOOLS, TOOLS_PROGRAM = ("3.12", "3.13"), "mlp"

# Why peaks differ. Each was seen in November 2026: with that rule alone changed, the first
# environment's prediction has the other one's bytes; of GPT-2's masks, by the two traces.
REASONS = {
    "lt": "Until torch 2.8 cuBLASLt takes 1 MiB for each product and gives it back; from 2.12 on "
    "it works in cuBLAS's workspace.",
    "lt kept": "From torch 2.9 to 2.11 cuBLASLt keeps 1 MiB for each thread beside cuBLAS's "
    "workspace (pull request 156495 of PyTorch); from 2.12 on the two are one.",
    "workspaces": "From torch 2.15 on a product takes cuBLAS's workspace, 8.1 MiB on this card, "
    "and gives it back; before, the forward thread and the autograd engine's keep one each.",
    "slices": "Until torch 2.8 `x[:, 0]` slices by `:` as well, and its backward pass fills one "
    "more tensor as large as x (ATen/TensorIndexing.h: applySlice returns x itself where its "
    "length is the slice's end, from 2.9 on where it is not beyond it).",
    "fused": "Transformers' Trainer takes AdamW's fused kernel from torch 2.8 on (default_optim in "
    "training_args.py); before, the foreach one, with temporaries and its steps on the host.",
    "masks": "GPT-2 of Transformers 4.57 has a causal mask of 64 KiB in each block (5.20 and 5.23 "
    "have none) and, without a cache, makes one for each batch, 512 KiB; with a mask attention is "
    "the memory-efficient kernel's and not flash attention's.",
}
# By environment and program: allocated and reserved bytes more than in the first environment.
Differences = dict[str, tuple[int, int, tuple[str, ...]]]
UNTIL_2_8: Differences = {
    "cuda_graphs": (0, 2 * MIB, ("lt",)),
    "vit_ema": (0, -108 * MIB, ("slices",)),
}
UNTIL_2_11: Differences = {
    "mlp": (MIB, 0, ("lt kept",)),
    "lstm_lm": (MIB, 2 * MIB, ("lt kept",)),
    "checkpointed_transformer": (2 * MIB, 4 * MIB, ("lt kept",)),
    "cuda_graphs": (2 * MIB, 2 * MIB, ("lt kept",)),
    "vit_ema": (MIB, 0, ("lt kept",)),
    "contrastive": (MIB, 2 * MIB, ("lt kept",)),
    "trainer_gpt2": (2 * MIB, 2 * MIB, ("lt kept",)),
}
OF_4_57: Differences = {"trainer_gpt2": (788_480, 2 * MIB, ("masks",))}
KNOWN: dict[str, Differences] = {
    "Python 3.9, torch 2.8": {**UNTIL_2_8, **OF_4_57},
    "Python 3.10, torch 2.6": {**UNTIL_2_8, "trainer_gpt2": (-26_624, 4 * MIB, ("fused",))},
    "Python 3.12, torch 2.11": UNTIL_2_11,
    "Python 3.13, torch 2.9": UNTIL_2_11,
    "Python 3.13, newest torch": {
        "mlp": (-11_214_848, 0, ("workspaces",)),
        "lstm_lm": (-16_624_640, 0, ("workspaces",)),
        "checkpointed_transformer": (-16_113_664, -72 * MIB, ("workspaces",)),
        "cuda_graphs": (-34_078_720, -56 * MIB, ("workspaces",)),
        "vit_ema": (-16_564_224, -106 * MIB, ("workspaces",)),
        "contrastive": (-17_039_360, -32 * MIB, ("workspaces",)),
        "trainer_gpt2": (-17_039_360, 0, ("workspaces",)),
    },
    "Transformers of a year ago": OF_4_57,
}


def interpreter(python: str) -> str | None:
    """A Python of that version which can make environments; None where none is installed."""
    name = f"python{python}"
    by_pyenv = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/{name}"))
    for candidate in [*map(str, by_pyenv), name] if python else [sys.executable]:
        path = shutil.which(candidate)
        words = [path or "", "-c", "import ensurepip, venv"]
        if path and subprocess.run(words, capture_output=True).returncode == 0:
            return path
    return None


def made(folder: Path, base: str, installs: Sequence[Sequence[str]], *, over: bool = False) -> str:
    """The Python of the environment in `folder`, which is made where it is not there or was made
    of other `installs`: what pip is told, in turn. `over`: it has this environment's packages
    behind its own.
    """
    python, mark, words = str(folder / "bin" / "python"), folder / ".set-up", json.dumps(installs)
    if mark.exists() and mark.read_text() == words:
        return python
    harness.say(f"{folder.name} is made")
    harness.output_of([base, "-m", "venv", "--clear", str(folder)])
    if over:
        (packages,) = folder.glob("lib/python3*/site-packages")
        behind = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (packages / "behind.pth").write_text(behind)
    for requirements in installs:
        install = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", *requirements]
        harness.output_of(install, PYTHONPATH="")
    mark.write_text(words)
    return python


def python_of(environment: Environment, base: str, index: Sequence[str]) -> str:
    """Of the environment of a script, which is made where it is not there. torch comes first: what
    follows finds it there.
    """
    if not environment.transformers:
        return base
    first = [[*index, environment.torch]] if environment.torch else []
    installs = [*first, [environment.transformers, "numpy", "accelerate"]]
    folder = FOLDER / harness.slug(environment.label)
    return made(folder, base, installs, over=not environment.torch)


def misread(python: str) -> list[str]:
    """Names and keys of the allocator's settings that the headers of this Python's torch have, and
    brimful's table has not; or the other way round. PyTorch's build for AMD alone reads
    PYTORCH_HIP_ALLOC_CONF there.
    """
    say = "import torch; print(torch.__path__[0], torch.__version__)"
    folder, version = harness.output_of([python, "-c", say]).split()
    torch, release = Path(folder), torch_release(version)
    headers = [torch / f"include/c10/{name}AllocatorConfig.h" for name in ("cuda/CUDA", "core/")]
    text = "".join(header.read_text() for header in headers if header.exists())
    keys = {key for key in KEYS_SINCE if key.removesuffix("_mb") in text}
    names = set(re.findall(r'get_?env\("(PYTORCH_(?:CUDA_)?ALLOC_CONF)"\)', text))
    table = {**KEYS_SINCE, **NAMES, "PYTORCH_HIP_ALLOC_CONF": sys.maxsize}
    return sorted((keys | names) ^ {name for name, since in table.items() if since <= release})


def row_of(key: str, label: str, python: str, tool: str = "") -> dict[str, Any]:
    """The peak of a program, or why there is none. `tool`: another brimful."""
    program = by_key(key)
    row = {"program": key, "build": label, "date": datetime.date.today().isoformat()}
    other: dict[str, Any] = {"tool": [tool], "PYTHONPATH": ""} if tool else {}
    with tempfile.TemporaryDirectory() as folder:
        # no larger size is of interest here, and each one would cost a trial
        words = ["predict", "--gpu", program.gpu, "--max-batch-size", str(program.batch_size)]
        report = harness.brimful(words, program.command(python), folder, TIME_LIMIT_S, **other)
    answer = report["answer"]
    if "error" in answer:
        return {**row, "error": answer["error"]["problem"]}
    return {**row, **{name: answer["peak"][name] for name in PEAK}}


def judged(row: dict[str, Any], baseline: dict[str, Any]) -> dict[str, Any]:
    """The row with its `difference` from the baseline, allocated and reserved bytes, and the
    reasons of a known one, or its `trouble`.
    """
    if "error" in row or "error" in baseline:
        return {**row, "trouble": row.get("error", "the baseline failed")}
    difference = [row[name] - baseline[name] for name in PEAK]
    *known, reasons = KNOWN.get(row["build"], {}).get(row["program"], (0, 0, ()))
    row = {**row, "difference": difference}
    if difference != known:
        bytes_more = "{:+,} and {:+,} bytes, and not by {:+,} and {:+,}"
        return {**row, "trouble": f"differs by {bytes_more.format(*difference, *known)}"}
    return {**row, "reasons": [REASONS[reason] for reason in reasons]}


def main(
    *,
    only: Annotated[list[str] | None, "names of programs"] = None,
    torch_index_url: Annotated[str | None, "of another build of torch than PyPI's"] = None,
) -> int:
    chosen = harness.choose(dict.fromkeys(PROGRAMS), only)
    index = ["--index-url", torch_index_url] if torch_index_url else []
    baseline: dict[str, dict[str, Any]] = {}
    rows, missing, wrong = [], [], []

    def add(key: str, label: str, python: str, tool: str = "") -> None:
        row = row_of(key, label, python, tool)
        rows.append(judged(row, baseline.setdefault(key, row)))
        harness.say(json.dumps(rows[-1]))
        builds = {label: versions(python, list(PACKAGES))}
        keep(VERSIONS_RESULT, rows[-1:], ("program", "build"), PROGRAMS, builds=builds)

    for environment in (BASELINE, *ENVIRONMENTS):
        base = interpreter(environment.python)
        if base is None:
            missing.append(f"Python {environment.python}: {environment.label} is left out")
            continue
        python = python_of(environment, base, index)
        wrong += [f"allocator setting {name}, {environment.label}" for name in misread(python)]
        for key in chosen:
            if key in environment.programs:
                add(key, environment.label, python)
    for version in TOOLS if TOOLS_PROGRAM in chosen else ():
        label, base = f"brimful itself on Python {version}", interpreter(version)
        if base is None:
            missing.append(f"Python {version}: {label} is left out")
            continue
        folder = FOLDER / harness.slug(label)
        shutil.rmtree(folder, ignore_errors=True)  # the sources may be others now
        tool = Path(made(folder, base, [[str(harness.ROOT)]])).with_name("brimful")
        add(TOOLS_PROGRAM, label, sys.executable, str(tool))
    troubles = [row for row in rows if "trouble" in row]
    lines = [f"  not installed: {words}" for words in missing]
    lines += [f"  not as in the headers: {words}" for words in wrong]
    lines += [f"  {row['program']}, {row['build']}: {row['trouble']}" for row in troubles]
    known = f"{len(rows) - len(troubles)} of {len(rows)} as known"
    print(f"{known}; docs/how/{VERSIONS_PAGE.name} is written", *lines, sep="\n")
    return 1 if troubles or wrong else 0


if __name__ == "__main__":
    sys.exit(harness.run(main))
