"""What the tests of all recipes share: messages that are kept, and commands in processes."""

import os
import subprocess
import sys

# of whoever starts the tests
HIDDEN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BRIMFUL_TRIAL_CONFIG", "MALLOC_MMAP_MAX_")


class Messages(list):
    def __call__(self, sentence: str) -> None:
        self.append(sentence)

    @property
    def text(self) -> str:
        return "\n".join(self)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return {**kept, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def run(
    recipe: str, *words: object, code: int = 0, ranks: int = 0, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.RECIPE WORDS`, by torchrun with `ranks`."""
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m")
    command = [sys.executable, "-m", *(launcher if ranks else ()), f"recipes.{recipe}"]
    done = subprocess.run(
        [*command, *map(str, words)],
        env=environment(),
        input=typed,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
