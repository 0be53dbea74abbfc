"""Threads that use the cards of a process at once, as the replicas of nn.DataParallel do."""

import io
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.parallel import comm

from brimful_inside.imaginary.attribution import annotations
from brimful_inside.simulator.roofline import PEER
from brimful_inside.simulator.trace import At, Malloc, Site, decode

from .conftest import card, entered

REPLICAS, TIMES = 8, 100
# Each allocation's size says its line.
BODY = """\
def work(device):
    first = torch.empty({first}, dtype=torch.uint8, device=device)
    second = torch.empty({second}, dtype=torch.uint8, device=device)
    return first + first
"""


@pytest.fixture
def traces():
    return [io.StringIO() for _ in range(REPLICAS)]


@pytest.fixture(autouse=True)
def gpu(monkeypatch, traces):
    """Eight cards, whose call sites take long to read, so that other threads go on in the
    meantime."""

    def getline(file, line):
        time.sleep(1e-4)
        return f"the text of line {line}"

    monkeypatch.setattr(annotations.linecache, "getline", getline)
    with entered(card(), None, traces.__getitem__, count=REPLICAS) as gpu:
        yield gpu


def in_threads(work, turns=1):
    """`work(number, turn)` in a thread for each number, each turn in all at once. Raises what one
    of them raised."""
    at_once = threading.Barrier(REPLICAS)

    def run(number):
        try:
            for turn in range(turns):
                at_once.wait()
                work(number, turn)
        except threading.BrokenBarrierError:
            pass  # another one says why
        except BaseException:
            at_once.abort()
            raise

    with ThreadPoolExecutor(REPLICAS) as threads:
        list(threads.map(run, range(REPLICAS)))


def allocated_for(text, op):
    """How often."""
    return sum(isinstance(row, Malloc) and op in row.op for row in decode(text.splitlines()).rows)


def sizes_and_lines(text):
    """(bytes, module's file and line) of each allocation."""
    trace = decode(text.splitlines())
    assert trace.whole
    sites, at, notes = {}, None, list(trace.notes)
    for number, row in enumerate(trace.rows):
        while notes and notes[0][0] <= number:
            _, note = notes.pop(0)
            if isinstance(note, Site):
                sites[note.number] = note
            at = note.number if isinstance(note, At) else at
        if isinstance(row, Malloc):
            yield row.nbytes, re.match(r"\d+\.py:\d+", sites[at].where).group()


def test_replicas_that_allocate_at_new_lines_at_once_each_get_their_own_line(traces):
    works = []
    for turn in range(TIMES):
        here = {"torch": torch}
        text = BODY.format(first=1024 * (2 * turn + 1), second=1024 * (2 * turn + 2))
        exec(compile(text, f"/a/{turn}.py", "exec"), here)
        works.append(here["work"])

    in_threads(lambda number, turn: works[turn](torch.device("cuda", number)), TIMES)
    expected = [
        (1024 * (2 * turn + size), f"{turn}.py:{line}")
        for turn in range(TIMES)
        for size, line in ((1, 2), (2, 3), (1, 4))
    ]
    (text,) = {file.getvalue() for file in traces}  # none depends on the others
    assert list(sizes_and_lines(text)) == expected


def test_a_weight_that_threads_share_is_cast_once(traces):
    weight = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
    inputs = torch.empty(8, 64, device="cuda", dtype=torch.float16)
    all_done = threading.Barrier(REPLICAS)

    def product(number, turn):
        with torch.autocast("cuda", torch.float16):
            inputs @ weight
            all_done.wait()  # the end of a thread's context forgets the casts of all, as in PyTorch

    in_threads(product)
    assert allocated_for(traces[0].getvalue(), "_to_copy") == 1


def test_backward_passes_in_threads_share_one_workspace(gpu, monkeypatch):
    reserve = gpu.workspaces._reserve

    def reserve_slowly(formula, nbytes):
        time.sleep(1e-3)
        reserved.append(nbytes)
        return reserve(formula, nbytes)

    weight = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
    losses = [(torch.empty(8, 64, device="cuda") @ weight).sum() for _ in range(REPLICAS)]
    reserved = []
    # later releases take it for each operation
    for name, value in (("_reserve", reserve_slowly), ("release", 213), ("_cublaslt", 0)):
        monkeypatch.setattr(gpu.workspaces, name, value)
    in_threads(lambda number, turn: torch.autograd.grad(losses[number], weight))
    assert len(reserved) == 1


def test_a_broadcast_in_one_thread_leaves_the_copies_of_another_as_they_are(gpu):
    sent = [torch.empty(8, device="cuda:0") for _ in range(REPLICAS)]

    def copy(number, turn):
        if number % 2:
            comm.broadcast(sent[number], [0, 1, 2])
        else:
            sent[number].to(f"cuda:{number + 1}")

    in_threads(copy)
    rows = [row for clock in gpu.clocks for row in clock.since(0) if row[1] == PEER]
    copied = [row[3] for row in rows if "_to_copy" in row[0]]
    assert copied == [32] * 8, "each copy takes both links"
    assert gpu.here.copies_cross
