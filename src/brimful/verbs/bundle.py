"""`doctor --bundle`: one archive of the latest call, for a report of what went wrong.

No data and no secrets: of the record it takes what brimful wrote, of the command's output the end
of its errors. What a script prints, traces and the script itself stay here.
"""

import io
import socket
import tarfile
from pathlib import Path

from brimful import codec, files
from brimful.errors import DiskFull, UsageError
from brimful.measure.kept_files import masked_lines
from brimful.record import FILE_NAME, read_record
from brimful.verbs.doctor import doctor

_TAKEN = (FILE_NAME, "*/trial_config.json", "*/wire-*.jsonl", "*/stderr.txt")
_MOST_BYTES = 64 << 10  # of one file's end: a traceback is shorter


def contents(home: Path | None) -> tuple[Path, dict[str, bytes]]:
    """(the archive's name, each part of it). Raises NoSuchRecord."""
    folder = Path(read_record("latest", home).folder)
    machine, findings = doctor()
    parts = {"doctor.json": codec.answer(machine=machine, findings=findings)}
    for path in sorted(path for pattern in _TAKEN for path in folder.glob(pattern)):
        if files.is_regular(path) and files.is_own_folder(path.parent):
            text = files.read(path).decode(errors="replace")
            if path.name != FILE_NAME:
                text = text[-_MOST_BYTES:]
            parts[str(path.relative_to(folder))] = masked_lines(text)
    hidden = {socket.gethostname(): "HOST", str(Path.home()): "~"}
    for real, shown in hidden.items():
        parts = {name: text.replace(real, shown) for name, text in parts.items()}
    return Path(f"brimful-{folder.name}.tar.gz"), {n: text.encode() for n, text in parts.items()}


def write(path: Path, parts: dict[str, bytes]) -> None:
    """Raises UsageError where the file is there or cannot be made, DiskFull."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in parts.items():
            member = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    try:
        files.replace(path, packed.getvalue())
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(path), kept="the record itself") from error
        raise UsageError(
            f"{path} could not be written: {error.strerror}",
            suggestion="change to a folder in which you may write; name the records with --home",
        ) from error
