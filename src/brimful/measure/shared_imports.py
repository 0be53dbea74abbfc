"""Imports for all trials of a command: one process runs those with which the script begins, and is
forked for each trial.

Imports are most of what a short trial costs. A trial whose command cannot be started so is started
as ever: one that is not Python, one whose libraries start threads while they are imported
(`brimful_inside.probe.process.shared_imports`). Of a launcher that starts one rank, trials after
the first start that rank without it.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from brimful import codec, files
from brimful.measure.carry_over import KEPT_OUT
from brimful.measure.output import OutputFiles
from brimful.measure.supervisor import start_process, write_config
from brimful_inside import wire
from brimful_inside.launchers import words_of_command

_IMPORTS_S = 300.0  # more than any library takes on a busy machine (assumed)
_FORK_S = 60.0
_END_S = 2.0


class ForkedProcess:
    """One trial's process, a child of the one that imported: what `subprocess.Popen` is to
    others.
    """

    def __init__(self, pid: int, forked_from: int, messages: "_Messages"):
        self.pid, self.forked_from = pid, forked_from
        self._messages = messages
        self._code: int | None = None

    def poll(self) -> int | None:
        return self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Its exit code, negative for a signal; None where it has not ended by then."""
        if self._code is None:
            try:
                said = self._messages.next(timeout_s)
            except OSError:  # the process that imported is gone, and it ends with that one
                said = {"exit_code": -9}
            self._code = None if said is None else said["exit_code"]
        return self._code


class _Messages:
    """Lines of JSON over a socket."""

    def __init__(self, end: socket.socket):
        self.end = end
        self._received = b""

    def send(self, said: Mapping[str, Any]) -> None:
        self.end.sendall(json.dumps(said).encode() + b"\n")

    def next(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None where none came in that time. Raises OSError where the other end
        is gone.
        """
        while b"\n" not in self._received:
            if not select.select([self.end], [], [], timeout_s)[0]:
                return None
            came = self.end.recv(1 << 16)
            if not came:
                raise ConnectionError
            self._received += came
        line, self._received = self._received.split(b"\n", 1)
        return json.loads(line)


class SharedImports:
    """Starts the trials of one session. Call `close` at its end."""

    def __init__(self, folder: Path):
        """`folder`: for its own files, made and removed here."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: _Messages | None = None
        # what must be the same for a trial to be forked from the process that is there
        self._for: Any = None
        self._replaces = 0
        self._launched: _Launched | None = None  # where the command is a launcher's
        self._used = sys.platform == "linux"
        self.forked = False  # the latest trial

    def fork(
        self,
        config: wire.TrialConfig,
        argv: Sequence[str],
        environment: Mapping[str, str],
        limit_s: float,
    ) -> ForkedProcess | None:
        """A process for this trial, its streams in files of its folder; None where it is to be
        started as ever. Imports may take `limit_s`."""
        self.forked = False
        if self._launched is not None:
            argv, environment = self._launched.rank(argv, environment)
        head = words_to_script(argv) if self._used else None
        if head is None:
            return None
        common = {
            name: value for name, value in environment.items() if name != wire.TRIAL_CONFIG_VARIABLE
        }
        shared = _without_what_varies(config, str(self._folder))
        wanted = (tuple(argv[:head]), common, replace(shared, card=None), os.getcwd())
        try:
            if self._for != wanted:
                self.close()
                self._start(argv, common, shared, min(_IMPORTS_S, limit_s))
                self._for, self._replaces = wanted, len(argv) - head
            return self._forked(config, argv[head:])
        except OSError:  # none is there any more, or none could be started
            self.stop_using()
            return None

    def learn(self, argv: Sequence[str], folder: Path) -> None:
        """From a trial's files: what a launcher started."""
        is_launcher = words_of_command(argv).launcher is not None
        if self._launched is None and self._used and is_launcher:
            self._launched = _launched(argv, folder)

    def _start(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        config: wire.TrialConfig,
        limit_s: float,
    ) -> None:
        """Raises OSError, ConnectionError included, where no trial can be forked from it."""
        path = write_config(config, "the trials before this one")
        ours, theirs = socket.socketpair()
        self._messages = _Messages(ours)
        with theirs, OutputFiles(self._folder) as output:
            added = {
                wire.TRIAL_CONFIG_VARIABLE: str(path),
                wire.SHARED_IMPORTS_VARIABLE: str(theirs.fileno()),
            }
            self._process = start_process(
                argv, {**environment, **added}, output, (theirs.fileno(),)
            )
        said = self._messages.next(limit_s)
        if said is None or not said["ready"]:
            raise TimeoutError

    def _forked(self, config: wire.TrialConfig, arguments: Sequence[str]) -> ForkedProcess:
        assert self._process is not None and self._messages is not None
        folder = Path(config.folder)
        if (self._folder / KEPT_OUT).exists():  # what the imports wrote
            shutil.copytree(
                self._folder / KEPT_OUT, folder / KEPT_OUT, symlinks=True, dirs_exist_ok=True
            )
        path = str(folder / "trial_config.json")
        self._messages.send(
            {"config": path, "replaces": self._replaces, "arguments": list(arguments)}
        )
        said = self._messages.next(_FORK_S)
        if said is None:
            raise TimeoutError
        self.forked = True
        return ForkedProcess(said["pid"], self._process.pid, self._messages)

    def stop_using(self) -> None:
        """From here on each trial is started as ever."""
        self._used = False
        self.close()

    def close(self) -> None:
        if self._messages is not None:
            self._messages.end.close()  # at which the process ends
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # and what the imports have started
            self._process.wait()
        self._process = self._messages = self._for = None
        shutil.rmtree(self._folder, ignore_errors=True)


class _Launched(NamedTuple):
    """The one rank that a launcher started, which ends with the words that the launcher's command
    ends with.
    """

    argv: tuple[str, ...]  # the launcher's
    rank_argv: tuple[str, ...]
    same: int  # last words of both
    added: dict[str, str]  # to the environment

    def rank(
        self, argv: Sequence[str], environment: Mapping[str, str]
    ) -> tuple[Sequence[str], Mapping[str, str]]:
        """How the rank of another trial is started without its launcher. Unchanged where the
        launcher's own words differ.
        """
        if tuple(argv[: -self.same]) != self.argv[: -self.same]:
            return argv, environment
        return (*self.rank_argv[: -self.same], *argv[-self.same :]), {**environment, **self.added}


def _launched(argv: Sequence[str], folder: Path) -> _Launched | None:
    """None where there was not one rank alone, started with a variation of the command's last words
    and with nothing to ask its launcher for, as torchrun's store."""
    events = [
        event
        for path in folder.glob("wire-*.jsonl")
        for event in codec.read_wire_leniently(path)[0]
    ]
    ranks = {
        event.pid: event
        for event in events
        if isinstance(event, wire.ProcessStarted) and event.role == "rank"
    }
    if len(ranks) != 1:
        return None
    (rank,) = ranks.values()
    same = sum(
        1
        for _ in takewhile(
            lambda pair: pair[0] == pair[1], zip(reversed(argv), reversed(rank.argv), strict=False)
        )
    )
    if rank.launched_with is None or "WORLD_SIZE" in rank.launched_with or not same:
        return None
    return _Launched(tuple(argv), tuple(rank.argv), same, rank.launched_with)


def words_to_script(argv: Sequence[str]) -> int | None:
    """How many words of a command come before the arguments of its Python script; None where it is
    not the start of one that a probe can be loaded into, or of a launcher.
    """
    words = words_of_command(argv)
    if not words.loads_probe or words.launcher is not None:
        return None
    if words.script == argv[0]:
        return words.count if _is_python_script(shutil.which(argv[0]) or argv[0]) else None
    return words.count


def _is_python_script(path: str) -> bool:
    try:
        with files.opened(path, follows_links=True) as file:
            first = file.readline(200)
    except OSError:
        return False
    words = [os.path.basename(word) for word in first[2:].decode(errors="replace").split()]
    program = words[1:] if words[:1] == ["env"] else words
    return first.startswith(b"#!") and program[:1] != [] and program[0].startswith("python")


def _without_what_varies(config: wire.TrialConfig, folder: str) -> wire.TrialConfig:
    """The trial config for the process that imports: what each trial has of its own is as in no
    trial, but for the card, which may be replaced while it is not used."""
    plain = wire.TrialConfig(folder, config.device)
    varies = (
        "capacity_bytes",
        "ends",
        "worst_batch",
        "largest_at",
        "scans",
        "settings",
        "time_loader",
        "find_places",
        "places",
    )
    return replace(config, folder=folder, **{name: getattr(plain, name) for name in varies})
