"""A trial leaves no trace in the user's files, whatever the script writes with."""

import os
import shutil
import sqlite3
import subprocess

import pytest
import torch

from tests.brimful_inside.helper import contents

SCRIPT = """
import glob, json, os, pathlib, shutil, subprocess, sys, tempfile
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(8, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=16)
assert pathlib.Path("data.txt").read_text() == "data"
step = 0
for x, y in loader:
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    torch.save({"step": step}, "best.pt")
    assert torch.load("best.pt")["step"] == step
    os.makedirs("ck/new", exist_ok=True)
    torch.save({"step": step}, pathlib.Path("ck/new/tmp.pt"))
    os.replace("ck/new/tmp.pt", "ck/last.pt")
    assert torch.load("ck/last.pt")["step"] == step
    with open("log.csv", "a") as file:
        file.write("%d\\n" % step)
    pathlib.Path("ck/state.json").write_text(json.dumps(step))
assert open("log.csv").read() == "head\\n1\\n2\\n3\\n4\\n"
save_file({"a": torch.ones(2)}, "weights.safetensors")
assert load_file("weights.safetensors")["a"].sum() == 2
np.save("a.npy", np.ones(3)); assert np.load("a.npy").sum() == 3
np.memmap("m.bin", dtype="f4", mode="w+", shape=4).flush(); assert os.path.getsize("m.bin") == 16
os.remove("data.txt"); assert not os.path.exists("data.txt") and "data.txt" not in os.listdir()
shutil.rmtree("old"); assert not glob.glob("old/*") and not os.path.isdir("old")
os.makedirs("old/new"); assert os.listdir("old") == ["new"]
os.rename("kept", "moved")
assert pathlib.Path("moved/c.txt").read_text() == "c" and not os.path.isdir("kept")
shutil.copy2("log.csv", "copy.csv"); shutil.copytree("moved", "again")
assert os.path.getmtime("copy.csv") == os.path.getmtime("log.csv")
os.symlink("log.csv", "latest"); assert open("latest").read().startswith("head")
os.truncate("cut.txt", 1); assert open("cut.txt").read() == "c"
os.utime("touched.txt", (1, 1))
os.chmod("touched.txt", 0o600)
assert os.stat("touched.txt").st_mtime == 1
code = "open('sub.txt', 'w').write('s'); import helper_module"
subprocess.run([sys.executable, "-c", code], check=True)
assert open("sub.txt").read() == "s"
with tempfile.TemporaryDirectory() as folder:
    open(os.path.join(folder, "x"), "w").close(); assert os.listdir(folder) == ["x"]
try:
    open("missing/x", "w")
except FileNotFoundError:
    pass
else:
    raise AssertionError
tables = sorted(p.name for p in pathlib.Path(".").iterdir() if p.suffix == ".csv")
assert tables == ["copy.csv", "log.csv"]
tracked = "MLFLOW_TRACKING_URI" in os.environ
print("all as it should be", os.environ["WANDB_MODE"], tracked, sys.dont_write_bytecode)
"""

PATHS = """
import os, pathlib, pickle, shutil, tempfile
folder = pathlib.Path("out"); folder.mkdir(); (folder / "a.txt").write_text("1")
assert (folder / "a.txt").exists() and (folder / "a.txt").read_text() == "1"
(folder / "a.txt").rename(folder / "b.txt"); assert [p.name for p in folder.iterdir()] == ["b.txt"]
assert [str(p) for p in folder.glob("*.txt")] == ["out/b.txt"]
(folder / "b.txt").unlink(); folder.rmdir(); assert not folder.exists()
pathlib.Path("data.txt").touch(); assert pathlib.Path("data.txt").read_text() == "data"
os.makedirs("x/y", exist_ok=True)
open("x/y/f", "w").close()
assert [r for r, _, _ in os.walk("x")] == ["x", "x/y"]
with tempfile.NamedTemporaryFile("w") as file:
    assert os.path.exists(file.name)
class Holder:
    stat = os.stat
assert Holder().stat("data.txt").st_size == 4
assert pickle.loads(pickle.dumps(os.remove)) is os.remove
"""

# What opens files in other ways than by open: unbuffered, in modules that had the true `open`, by
# the kernel's links to the working folder, as special files.
OTHER_WAYS = """
import bz2, io, lzma, os, numpy as np
with io.FileIO("raw.bin", "w") as file:
    file.write(b"raw")
assert io.FileIO("raw.bin").readall() == b"raw" and open("raw.bin", "rb").read() == b"raw"
with io.FileIO("log.csv", "a") as file:
    assert isinstance(file, io.FileIO) and issubclass(type(file), io.FileIO)
    file.write(b"more")
assert open("log.csv").read() == "head\\nmore"
with open("raw.bin", "rb", buffering=0) as file:
    assert isinstance(file, io.FileIO) and not isinstance(file, io.BytesIO)
    assert np.fromfile(file, "u1").tolist() == [114, 97, 119]
class Kept(io.FileIO):
    pass
class Mixed(io.FileIO, io.RawIOBase):
    pass
assert not isinstance(file, Kept) and isinstance(Kept("raw.bin"), io.FileIO)
for library in (bz2, lzma):
    with library.open("packed", "wt") as file:
        file.write("x")
    assert library.open("packed", "rt").read() == "x"
here = os.getcwd().lstrip("/")
folder = os.open(".", os.O_RDONLY)
places = ["/proc/self/cwd", "/proc/%d/cwd" % os.getpid(), "//proc/self//cwd"]
places += ["/proc/self/cwd/old/.."]
places += ["/proc/self/root/" + here, "/proc/self/fd/%d" % folder, "/dev/fd/%d" % folder]
places += ["/proc/self/root/proc/self/cwd", "/proc/thread-self/cwd", "//" + here]
for n, place in enumerate(places):
    open("%s/by-%d" % (place, n), "w").close()
    assert os.path.exists("by-%d" % n), place
    assert open(place + "/data.txt").read() == "data"
    os.mkdir(place + "/made-%d" % n)
    os.rmdir(place + "/made-%d" % n)
os.remove("/proc/self/cwd/data.txt")
assert not os.path.exists("data.txt")
os.mkfifo("pipe"); assert os.path.exists("pipe")
try:
    os.setxattr("touched.txt", "user.x", b"1")
    assert os.getxattr("touched.txt", "user.x") == b"1"
except OSError:
    pass
open("/dev/fd/1", "w").write("all as it should be\\n")
"""

DATABASES = """
import os, sqlite3
from pathlib import Path
here = os.getcwd()

def count(path, **named):
    with sqlite3.connect(path, **named) as db:
        return db.execute("select count(*) from t").fetchone()[0]

for number, (path, named) in enumerate([
    ("users.db", {}), (Path("users.db"), {}), ("file:users.db", {"uri": True}),
    ("file://%s/users.db?mode=rw" % here, {"uri": True}), ("file:%75sers.db", {"uri": True}),
    ("file://localhost%s/users.db#x" % here, {"uri": True}),
]):
    db = sqlite3.connect(path, **named)
    db.execute("insert into t values (?)", (number,)); db.commit(); db.close()
    assert count("users.db") == number + 2, path
assert count("file:users.db?mode=ro", uri=True) == 7
db = sqlite3.connect(":memory:")
assert isinstance(db, sqlite3.Connection) and isinstance(db.cursor(), sqlite3.Cursor)
for number, (sql, words) in enumerate([
    ("attach 'other.db' as a%d", ()), ("ATTACH DATABASE ? AS a%d", ("other.db",)),
    ("-- words\\n/* as */ attach :file as a%d;", {"file": "other.db"}),
    ("attach 'oth' || 'er.db' as a%d", ()), ("attach other as a%d", ()),
    ('attach "other.db" as "a%d"', ()),
]):
    (db if number % 2 else db.cursor()).execute(sql % number, words)
    db.execute("create table a%d.t%d (x)" % (number, number)); db.commit()
db.execute("attach ? as ?", ("other.db", "bound")); db.execute("select * from bound.t0")
for number in (0, 1, 2, 3, 5):
    assert db.execute("select count(*) from bound.t%d" % number).fetchone() == (0,)
db.executescript("create table s (x); insert into s values (';'); attach 'other.db' as s1;")
db.executescript("attach 'other.db' as s2; create table s2.s3 (x)")
assert db.execute("select x from s").fetchone() == (";",)
db.commit()
db.execute("vacuum into 'copied.db'"); db.execute("vacuum main into ?", ("again.db",))
assert os.path.exists("copied.db") and os.path.exists("again.db")
class Own(sqlite3.Connection):
    pass
Own("own.db").execute("create table t (x)")
sqlite3.connect("own2.db", factory=Own).execute("create table t (x)")
sqlite3.dbapi2.connect("own3.db").execute("create table t (x)")
try:
    sqlite3.connect("missing/x.db")
except sqlite3.OperationalError:
    print("all as it should be")
"""

USERS = {
    "data.txt": "data",
    "best.pt": "old",
    "log.csv": "head\n",
    "old/a.txt": "a",
    "kept/c.txt": "c",
    "cut.txt": "cut",
    "touched.txt": "t",
    "helper_module.py": "",
    "script.py": SCRIPT,
}


@pytest.fixture
def work(tmp_path):
    for name, text in USERS.items():
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "work"


def run_without_a_trace(run_trial, work, says):
    before = contents(work)
    trial = run_trial(["script.py"], keep_out=True, cut=False)
    assert trial.stdout == says + "\n", trial.stderr
    assert contents(work) == before
    return trial


def test_everything_a_script_writes_lies_in_the_trials_folder_and_is_read_from_there(
    run_trial, work
):
    trial = run_without_a_trace(run_trial, work, "all as it should be disabled True True")
    wrote = {os.path.relpath(path, work) for path in trial.report["wrote"]}
    assert {"best.pt", "ck/last.pt", "log.csv", "weights.safetensors", "a.npy"} <= wrote
    assert (trial.folder / "kept_out" / str(work).lstrip("/") / "ck" / "last.pt").exists()


def test_what_python_opens_in_other_ways_is_kept_in_as_well(run_trial, work):
    (work / "script.py").write_text(OTHER_WAYS)
    run_without_a_trace(run_trial, work, "all as it should be")


def test_databases_of_sqlite_are_opened_and_attached_in_the_layer(run_trial, work):
    with sqlite3.connect(work / "users.db") as database:
        database.execute("create table t (x)")
        database.execute("insert into t values (7)")
    (work / "script.py").write_text(DATABASES)
    run_without_a_trace(run_trial, work, "all as it should be")
    with sqlite3.connect(work / "users.db") as database:
        assert database.execute("select * from t").fetchall() == [(7,)]


def test_without_keeping_out_the_same_script_changes_its_folder(run_trial, work):
    """The guard above can fail: the files it compares are the ones that change."""
    before = contents(work)
    run_trial(["script.py"], keep_out=False, cut=False, env={"WANDB_MODE": "disabled"}, exit_code=0)
    assert contents(work) != before and contents(work)["best.pt"] != before["best.pt"]


def test_an_imaginary_trial_writes_no_empty_tensors_over_the_users(run_trial, work):
    trial = run_trial(
        """
        import torch
        from torch.utils.data import DataLoader
        model = torch.nn.Linear(4, 2).cuda(); optimizer = torch.optim.Adam(model.parameters())
        for x in DataLoader(torch.ones(64, 4), 8):
            model(x.cuda()).sum().backward()
            optimizer.step()
            torch.save(model.state_dict(), "best.pt")
        """,
        keep_out=True,
        device="imaginary",
    )
    assert trial.report["steps"] == 4, trial.stderr
    assert (work / "best.pt").read_text() == "old" and trial.report["wrote"] == [
        str(work / "best.pt")
    ]


def test_what_a_trial_wrote_is_mapped_into_memory_from_its_layer(run_trial, work):
    """As datasets has it with a `cache_dir` beside the script: Python writes a table that pyarrow's
    C++ reads.
    """
    pytest.importorskip("pyarrow")
    script = """
        import pyarrow
        table = pyarrow.table({"x": [1, 2, 3]})
        stream = pyarrow.ipc.new_stream
        with open("cache.arrow", "wb") as file, stream(file, table.schema) as writer:
            writer.write_table(table)
        with pyarrow.memory_map("cache.arrow") as mapped:
            print(pyarrow.ipc.open_stream(mapped).read_all().num_rows)
        with pyarrow.memory_map("data.txt", "r+") as mapped:
            mapped.write(b"new!")
        """
    trial = run_trial(script, keep_out=True, cut=False, cwd=work)
    assert trial.stdout == "3\n", trial.stderr
    assert (work / "data.txt").read_text() == "data" and not (work / "cache.arrow").exists()


IN_A_FOLDER_OF_ITS_OWN = """
import os, pathlib, subprocess, sys
home = os.getcwd()
os.makedirs("out/final"); os.chdir("out/final")
final = os.path.join(home, "out", "final")
assert os.getcwd() == final == os.fsdecode(os.getcwdb()) == str(pathlib.Path.cwd())
open("model.txt", "w").write("new"); open("../log.txt", "w").write("log"); os.mkdir("inner")
assert sorted(os.listdir()) == sorted(e.name for e in os.scandir()) == ["inner", "model.txt"]
assert os.path.exists("../log.txt")
assert open("../../data.txt").read() == "data" and os.path.getsize("../../data.txt") == 4
assert sorted(os.listdir("../..")) == sorted([*os.listdir(home)])
os.rename("../../data.txt", "moved.txt")
assert open("moved.txt").read() == "data" and not os.path.exists("../../data.txt")
code = "print(os.getcwd(), open('model.txt').read(), os.path.exists('../../log.csv'))"
words = [sys.executable, "-c", "import os; " + code]
assert subprocess.check_output(words, text=True).split() == [os.getcwd(), "new", "True"]
os.chdir("../.."); assert os.getcwd() == home and open("out/final/model.txt").read() == "new"
said = subprocess.check_output(words, text=True, cwd="out/final").split()
assert said == [home + "/out/final", "new", "True"]
os.chdir("old"); assert open("a.txt").read() == "a" and os.getcwd() == home + "/old"
print("done")
"""


def test_a_folder_that_the_trial_made_is_a_working_folder_like_any_other(run_trial, work):
    (work / "script.py").write_text(IN_A_FOLDER_OF_ITS_OWN)
    run_without_a_trace(run_trial, work, "done")


TOKENIZERS = """
import os, torch
from tokenizers import Tokenizer, models, trainers
from torch.serialization import save
with open("corpus.txt", "w") as file:
    file.write("a b c a b " * 20)
tokenizer = Tokenizer(models.BPE())
tokenizer.train(["corpus.txt"], trainers.BpeTrainer(vocab_size=30, show_progress=False))
os.makedirs("new")
for folder in ("out", "new"):
    tokenizer.save(folder + "/tokenizer.json")
    tokenizer.model.save(folder)
    again = Tokenizer.from_file(folder + "/tokenizer.json")
    assert again.get_vocab_size() == tokenizer.get_vocab_size()
    assert sorted(os.listdir(folder)) == ["merges.txt", "tokenizer.json", "vocab.json"]
save({"a": 1}, "out/../best.pt")
print("done")
"""


CACHES = """
import os, pathlib
home = pathlib.Path.home()
(home / ".cache" / "huggingface" / "hub").mkdir(parents=True)
(home / ".cache" / "huggingface" / "hub" / "model").write_text("weights")
(home / ".cache" / "mine").mkdir(); (home / ".cache" / "mine" / "a").write_text("a")
assert (home / ".cache" / "huggingface" / "hub" / "model").read_text() == "weights"
assert sorted(os.listdir(home / ".cache")) == ["huggingface", "mine"]
assert (home / ".cache" / "mine" / "a").read_text() == "a"
import shutil; shutil.rmtree(home / ".cache"); assert not (home / ".cache").exists()
"""


def test_a_home_without_any_cache_gets_that_of_the_downloads_and_nothing_else(
    run_trial, tmp_path, monkeypatch
):
    for variable in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "script.py").write_text(CACHES)
    run_trial(
        ["script.py"], keep_out=True, cut=False, cwd=tmp_path, env={"HOME": str(home)}, exit_code=0
    )
    above = [".cache", ".cache/huggingface", ".cache/huggingface/hub"]
    assert list(contents(home)) == [*above, ".cache/huggingface/hub/model"]


def test_tokenizers_that_rust_writes_lie_in_the_trials_folder(run_trial, tmp_path):
    pytest.importorskip("tokenizers")
    out = tmp_path / "work" / "out"
    out.mkdir(parents=True)
    for name in ("tokenizer.json", "vocab.json", "merges.txt", "../best.pt", "../script.py"):
        (out / name).write_text(TOKENIZERS if name.endswith(".py") else "the user's")
    run_without_a_trace(run_trial, tmp_path / "work", "done")


def test_tensorboard_writes_through_python_where_tensorflow_is_there_too(run_trial, tmp_path):
    """It takes its own file calls, not TensorFlow's (which open files in C++), where a module
    `notf` is to be had.
    """
    package = tmp_path / "work" / "tensorboard" / "compat"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    trial = run_trial(
        "import torch\nfrom tensorboard.compat import notf\nprint('no tensorflow')", keep_out=True
    )
    assert trial.stdout == "no tensorflow\n", trial.stderr


def test_a_script_that_resumes_from_its_own_checkpoint_gets_a_note(run_trial, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    torch.save({"epoch": 7}, work / "last.pt")
    trial = run_trial(
        """
        import torch
        first = torch.load("last.pt")["epoch"]; pretrained = torch.load("last.pt")
        weight = torch.nn.Parameter(torch.ones(2)); optimizer = torch.optim.SGD([weight], lr=0.1)
        for epoch in range(first, 9):
            weight.sum().backward(); optimizer.step(); torch.save({"epoch": epoch}, "last.pt")
        """,
        keep_out=True,
    )
    assert torch.load(work / "last.pt") == {"epoch": 7}
    assert any("resumed from its own checkpoint" in note for note in trial.report["notes"])


def test_temporary_folders_are_gone_when_brimful_ends_the_script(run_trial, tmp_path):
    (tmp_path / "temporary").mkdir()
    trial = run_trial(
        """
        import multiprocessing.util, os, tempfile, torch
        folder = tempfile.TemporaryDirectory(); multiprocessing.util.get_temp_dir()
        open(os.path.join(folder.name, "x"), "w").close()
        assert len(os.listdir(tempfile.gettempdir())) == 2, os.listdir(tempfile.gettempdir())
        weight = torch.nn.Parameter(torch.ones(2)); optimizer = torch.optim.SGD([weight], lr=0.1)
        while True:
            weight.sum().backward(); optimizer.step()
        """,
        keep_out=True,
        see_eval=False,
        env={"TMPDIR": str(tmp_path / "temporary")},
    )
    assert trial.report["ended"] == "steps_done", trial.stderr
    left = [
        name for name in os.listdir(tmp_path / "temporary") if not name.startswith("torchinductor")
    ]  # a cache
    assert left == [] and not any("brimful's own" in note for note in trial.report["notes"])


def test_another_program_gets_a_note(run_trial):
    trial = run_trial(
        "import subprocess, torch; subprocess.run(['true']); subprocess.run(['uname'])",
        keep_out=True,
    )
    assert [note for note in trial.report["notes"] if "program" in note] == [
        "the script started the program 'true': what other programs write is not kept out of the "
        "user's files"
    ]


FOLDERS = """
import os, pathlib, shutil
here = os.getcwd()
os.mkdir("aside"); open("aside/a", "w").close(); os.rename("aside", "placed")
assert os.listdir("placed") == ["a"] and not os.path.exists("aside")
os.replace("placed", "elsewhere"); shutil.rmtree("elsewhere")
assert not os.path.exists("elsewhere")
open("kept/new", "w").close(); os.rename("kept", "moved")
assert sorted(os.listdir("moved")) == ["new", "old"] and not os.path.exists("kept")
os.rename("moved", "kept")
assert sorted(os.listdir("kept")) == ["new", "old"] and not os.path.exists("moved")
sync = os.open("kept", os.O_RDONLY); os.fsync(sync); os.close(sync)
os.remove("kept/old"); assert os.listdir("kept") == ["new"]
os.mkdir("made")
os.chdir("made")
open("b", "w").close()
assert os.listdir() == ["b"]
os.chdir(here)
os.chdir("kept")
os.chdir(".."); shutil.rmtree("kept")
for use in (os.listdir, os.scandir, os.chdir, os.stat, os.rmdir, shutil.rmtree):
    try:
        use("kept")
    except FileNotFoundError:
        continue
    raise AssertionError(use)
"""


@pytest.mark.parametrize("minor", range(9, 15))
def test_paths_and_folders_are_kept_out_under_every_python_that_is_here(run_trial, tmp_path, minor):
    python = shutil.which(f"python3.{minor}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"there is no Python 3.{minor} here")
    work = tmp_path / "work"
    (work / "kept").mkdir(parents=True)
    (work / "kept" / "old").write_text("old")
    (work / "data.txt").write_text("data")
    (work / "script.py").write_text(PATHS + FOLDERS)
    before = contents(work)
    trial = run_trial(["script.py"], keep_out=True, python=(python,), exit_code=0)
    assert contents(work) == before and [process["role"] for process in trial.processes] == ["rank"]
