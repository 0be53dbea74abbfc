"""What the examples of the recipes share: commands one after the other, each under a title."""

import subprocess
import sys


def step(title: str) -> None:
    print(f"\n=== {title}", flush=True)


def run(*command: object, shown: bool = True) -> str:
    """Standard output, which is shown as it comes unless it is wanted as a value. A command that
    fails ends the example with its exit code.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, text=True, stdout=None if shown else subprocess.PIPE)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout or ""
