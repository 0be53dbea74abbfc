"""Every verb is fed odd words, folders and files: it ends with one of our exit codes and a
sentence, waits for nothing, and leaves nothing behind. The options are those of the command line.
"""

import contextlib
import errno
import io
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import psutil
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import errors, masking
from brimful.cli import app
from brimful.codec import SCHEMA, Entry, encode_entry
from brimful.command import parse
from brimful.measure import accelerators
from brimful.values import AttemptStarted, Diagnostic, Opened, RunStarted

CODES = {error.exit_code for error in vars(errors).values() if hasattr(error, "exit_code")} | {0}
# mcp has no options, and answers a protocol for as long as its standard input is open.
VERBS = [name for name in app.app if not name.startswith("-") and name != "mcp"]
LIMIT_S = 60  # of a call that waits for something
# It asks the card's own Python, for minutes.
LEFT_OUT = {"--calibrate", "--words", "--empty-words", "*"}
# What stands in the folder: see `_furnish`.
PLACES = (
    *("pipe", "folder", "loop", "dangling", "unreadable", "garbage", "empty", "folder/none"),
    *(".brimful", "records", "records/20261128-120000-run-pipe", "records/garbage", "latest"),
    *(f"records/20261128-120000-{kind}" for kind in ("tune-trial", "run-garbage", "run-link")),
    *("/dev/null", "/dev/full", "~nosuchuser/x", "../..", "\udcff\udcfe", "a" * 300, "file.html"),
)
WORDS = (
    *("", " ", "-", "-1", "0", "1", "2", "8", "1e999", "9" * 5000, "²", "0x10", "1,2", "1,,2", ","),
    *("nan", "+nan %", "nan%", "inf", "inf%", "-inf", "1e400GiB", "20GiB", "1s", "infs", "nans"),
    *("a=b", "=", "batch_size=nan", "a\udcff=\udcfe", "x=1,2", "{batch_size}", "{", "{}", "{0}"),
    *("%s", "$(x)", "\x1b[2J\x9b1m", "l4", "l4:0", "l4:1..4", "all", "cpu", "html", "md", "sarif"),
    *("step_s > nan", "step_s > 1e999", "(", "HEAD", "slurm", "largest", "400Gb", "9" * 400 + "Gb"),
)
texts = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from(PLACES),
    st.text(
        st.characters(exclude_characters="\0/", exclude_categories=["Cs"])
        | st.sampled_from("\udc80\udcff"),
        max_size=8,
    ),
)
commands = st.lists(texts, max_size=3).flatmap(
    lambda rest: st.sampled_from([[], ["false"], ["false", *rest], rest, ["folder", *rest]])
)


def _options(verb: str) -> dict[str, bool]:
    """The names of its options, and whether each is a flag."""
    found = {}
    for argument in app.app[verb].assemble_argument_collection():
        for name in set(argument.names) - LEFT_OUT:
            if name.startswith("--"):
                found[name] = argument.hint in (bool, bool | None)
    return found


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    verb = draw(st.sampled_from(VERBS))
    words = [verb, *(["--once"] if verb == "monitor" else [])]  # else it watches for ever
    options = _options(verb)
    for name in draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True)):
        words.append(name if options[name] else f"{name}={draw(texts)}")
    if verb in ("report", "monitor", "check", "compare"):
        words += draw(st.lists(texts.filter(lambda word: word[:1] != "-"), max_size=2))
    command = draw(commands)
    return [*words, "--", *command] if command else words


def _entries(verb: str, record: Path) -> list[Entry]:
    """Of a record that was cut off on this machine, as far as it says."""
    opened = Opened(SCHEMA, record.name, verb, ("brimful",), parse(("false",)), None, None, 1.0)
    entries: list[Entry] = [opened, Diagnostic(socket.gethostname(), "\x1b[2J", "", "")]
    if verb == "run":
        start = {"settings": (), "argv": ("false",), "resumed": None, "started_unix_s": 1.0}
        entries.append(RunStarted("command", "", 1, ()))
        entries.append(AttemptStarted(number=1, folder="attempt-001", pid=1, **start))
    return entries


def _furnish(folder: Path, home: str) -> None:
    """Odd files, and records that somebody planted; `home`: what .brimful is."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("new")
    (folder / "garbage").write_bytes(b"\xff\xfe\0{[\x1b")
    for name in ("unreadable", "empty"):
        (folder / name).touch()
    (folder / "unreadable").chmod(0)
    names = ("trial_config.json", "wire-1.jsonl", "stdout.txt", "latest-report-1.jsonl")
    for kind, verb in (("pipe", "run"), ("trial", "tune"), ("garbage", "run"), ("link", "run")):
        record = folder / "records" / f"20261128-120000-{verb}-{kind}"
        record.mkdir(parents=True)
        if kind == "link":
            (record / "record.jsonl").symlink_to("/dev/zero")
            continue
        (record / "record.jsonl").write_bytes(b"".join(map(encode_entry, _entries(verb, record))))
        for part in ("attempt-001", "trial-001"):
            (record / part).mkdir()
            for name in names:
                if kind == "garbage":
                    (record / part / name).write_bytes(b"\xff{[\x1b\n")
                else:
                    os.mkfifo(record / part / name)
    os.mkfifo(folder / "records" / "20261128-120000-run-link" / "report.html")
    if home == "planted":
        (folder / ".brimful").symlink_to("records")
    elif home in ("pipe", "garbage", "loop"):
        (folder / ".brimful").symlink_to(home)
    elif home == "file":
        (folder / ".brimful").touch()
    for name, text in (("brimful.toml", "[jobs"), ("brimful.lock.json", "\x1b")):
        if home == "planted":
            os.mkfifo(folder / name)
        elif home != "none":
            (folder / name).write_text(text)
    if home == "garbage":
        (folder / "config" / "brimful" / "cards").mkdir(parents=True)
        (folder / "config" / "brimful" / "cards" / "l4.json").write_text('{"schema": 1}')


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    """The working folder, the user's configuration and the signals as they were at the end."""

    def too_long(*_: object) -> None:
        raise TimeoutError(errno.ETIMEDOUT, "it waits for something")

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    handlers, before = [signal.getsignal(number) for number in numbers], os.getcwd()
    environment = {"XDG_CONFIG_HOME": str(folder / "config"), "COLUMNS": "100"}
    os.chdir(folder)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT_S)
    try:
        with patch.dict(os.environ, environment), masking.learned_meanwhile():
            os.environ.pop("BRIMFUL_HOME", None)
            yield
    finally:
        signal.alarm(0)
        os.chdir(before)
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)


def _typed(words: list[str]) -> tuple[int, str, str]:
    out, err = (io.TextIOWrapper(io.BytesIO(), errors="backslashreplace") for _ in range(2))
    # a Python that has no torch: asking one takes seconds
    with (
        patch.object(accelerators, "_answer", lambda python, question: None),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = app.run(words)
    for stream in (out, err):
        stream.flush()
    said = [stream.buffer.getvalue().decode(errors="replace") for stream in (out, err)]
    return code, *said


@settings(max_examples=3 * settings.default.max_examples)
@given(command_lines(), st.sampled_from(["none", "planted", "pipe", "garbage", "loop", "file"]))
def test_whatever_is_typed_ends_with_a_sentence_and_leaves_nothing_behind(words, home):
    with tempfile.TemporaryDirectory(prefix="odd-") as above:
        folder = Path(above) / "1" / "2" / "3"
        folder.mkdir(parents=True)
        _furnish(folder, home)
        before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if not path.is_dir()}
        children = set(psutil.Process().children(recursive=True))
        with _within(folder):
            code, out, err = _typed(words)
        assert code in CODES, (code, err)
        assert "defect of brimful" not in err and "Traceback" not in err, err
        assert code == 0 or re.search(r"\w{3,} \w+", err + out), "a sentence"
        # of errors; a screen's own colours are off, since these streams are no terminals
        assert not re.search("[\x1b\x9b]", out + err)
        assert set(psutil.Process().children(recursive=True)) <= children
        named = [word.rpartition("=")[2] for word in words]
        for path in (path for path in Path(above).rglob("*") if not path.is_dir()):
            known = before.get(path) == path.lstat().st_mtime_ns
            inside = path.relative_to(above).parts
            ours = {".brimful", "records", ".gitignore"} & {*inside}
            ours = ours or re.search("/20[0-9-]{13}-", str(path)) or path.name == "prices.toml"
            assert known or ours or any(name and name in str(path) for name in named), path
            assert not re.fullmatch(r"\..*\.[0-9a-f]{8}", path.name), path
        assert not (folder / "new").exists() or "dangling" in " ".join(words)


def test_the_options_of_all_verbs_are_drawn():
    """The test above can fail: it knows what there is to type."""
    assert {"predict", "run", "report", "monitor", "check"} <= set(VERBS)
    assert {"--budget", "--snapshot", "--gpu"} <= set(_options("predict"))
    assert _options("tune")["--details"] and not _options("tune")["--budget"]
    assert 5 in CODES and 130 in CODES and sys.platform == "linux"
