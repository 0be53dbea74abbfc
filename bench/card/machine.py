"""The card of this machine, as torch describes it."""

import json
import subprocess
import sys
from typing import Any

_QUESTION = """
import json, torch
if not torch.cuda.is_available():
    raise SystemExit("torch %s sees no CUDA card" % torch.__version__)
p = torch.cuda.get_device_properties(0)
print("BRIMFUL" + json.dumps({
    "card": {"name": p.name, "total_bytes": torch.cuda.mem_get_info()[1],
             "capability": [p.major, p.minor], "multiprocessors": p.multi_processor_count},
    "versions": {"torch": torch.__version__, "cuda": torch.version.cuda,
                 "cudnn": torch.backends.cudnn.version()}}))
"""


def describe(python: str = sys.executable, question: str = _QUESTION) -> dict[str, Any]:
    """{"card": name, total_bytes, capability, multiprocessors; "versions": torch, cuda, cudnn} as
    torch says them in a process of its own. Raises LookupError with a sentence where there is no
    CUDA card."""
    run = subprocess.run(
        [python, "-c", question], capture_output=True, text=True, timeout=300, check=False
    )
    for line in run.stdout.splitlines():
        if line.startswith("BRIMFUL"):
            return json.loads(line[len("BRIMFUL") :])
    output = run.stderr.strip().splitlines()
    raise LookupError(
        output[-1] if output else f"{python} ended with {run.returncode} without a word"
    )
