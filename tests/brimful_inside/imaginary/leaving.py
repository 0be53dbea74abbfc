"""Run by test_leave.py in a process of its own: what torch is and does, before an imaginary card
was there and after.

Prints one JSON object: `changed`, the names that differ, and `answers`, the smoke suite's results
before and after."""

import copy
import gc
import io
import json
import os
import sys
import threading
import types
import warnings
from typing import Any

import torch
import torch._dynamo
import torch.distributed
import torch.nn.utils
import torch.optim
import torch.utils.data
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from brimful_inside import imaginary
from brimful_inside.wire import Card

CARD = Card("an imaginary card", 24 << 30, 500 << 20, [8, 6], 82)
WATCHED = (
    "torch",
    "threading",
    "gc",
    "os",
    "io",
    "builtins",
    "random",
    "pickle",
    "copy",
    "weakref",
    "multiprocessing",
)
# : What torch itself keeps as it goes along: caches, counters, what is imported when it is first
# needed.
KEPT_BY_TORCH = (
    ".RemovableHandle.next_id",
    "__warningregistry__",
    "__annotations__",
    "_cache",
    "__abstractmethods__",
    "_abc_impl",
)


def snapshot() -> dict[str, Any]:
    """Each attribute of each watched module and of each class in it, by name. Values are kept, so
    that identities stay."""
    attributes: dict[str, Any] = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in WATCHED and isinstance(module, types.ModuleType):
            for key, value in list(vars(module).items()):
                attributes[f"{name}.{key}"] = value
                if isinstance(value, type) and value.__module__.split(".")[0] in WATCHED:
                    attributes.update(
                        {
                            f"{name}.{key}.{inner}": thing
                            for inner, thing in list(vars(value).items())
                        }
                    )
    return attributes


def state() -> dict[str, Any]:
    """What can be changed without an attribute being replaced."""
    gc.collect()
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    return {
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "gc": gc.isenabled(),
        "gc thresholds": gc.get_threshold(),
        "frozen": gc.get_freeze_count(),
        "environment": dict(os.environ),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "grad": torch.is_grad_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu")],
        "autocast dtype": [str(torch.get_autocast_dtype(kind)) for kind in ("cuda", "cpu")],
        "threads": threading.active_count(),
        "module hooks": [
            len(v)
            for k, v in sorted(vars(modules).items())
            if k.startswith("_global") and hasattr(v, "__len__")
        ],
        "optimizer hooks": [
            len(optimizers._global_optimizer_pre_hooks),
            len(optimizers._global_optimizer_post_hooks),
        ],
        "excepthooks": [str(sys.excepthook), str(threading.excepthook)],
        "flags": [
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        ],
        "any dispatch mode": torch.utils._python_dispatch.is_in_torch_dispatch_mode(),
        "rng": torch.get_rng_state().sum().item(),
        "warnings": len(warnings.filters),
    }


def differences(before: dict[str, Any], after: dict[str, Any], loaded: set[str]) -> list[str]:
    """Names whose value is another object, or is gone, or is new and no module that was loaded
    meanwhile."""
    changed = [
        name for name, value in before.items() if name not in after or not same(value, after[name])
    ]
    new = [
        name
        for name in after.keys() - before.keys()
        if name.rsplit(".", 1)[0] in loaded or name.rsplit(".", 2)[0] in loaded
    ]
    changed += [name for name in new if not isinstance(after[name], types.ModuleType)]
    return sorted(name for name in changed if not name.endswith(KEPT_BY_TORCH))


def same(first: Any, second: Any) -> bool:
    return first is second or (
        type(first) is type(second) in (set, frozenset, tuple, str, int) and first == second
    )


def sizes(snapshot: dict[str, Any]) -> dict[str, int]:
    """How much is in each registry."""
    return {
        name: len(value) for name, value in snapshot.items() if type(value) in (dict, list, set)
    }


def words_of(action: Any) -> str:
    """How an action fails."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.recur, self.head = nn.LSTM(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = checkpoint(self.layer, x, use_reentrant=False)
        return self.head(self.recur(x)[0].mean(1))


def losses(amp: bool) -> list[float]:
    torch.manual_seed(5)
    model, values = Net(), []
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        with torch.autocast("cpu", enabled=amp):
            loss = F.cross_entropy(model(torch.randn(4, 3, 6, 6)), torch.randint(0, 4, (4,)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        values.append(loss.item())
    return values


def smoke() -> dict[str, Any]:
    """Ordinary uses of torch on the CPU, and what it says of the card that is not there."""
    file = io.BytesIO()
    torch.save({"w": torch.arange(6.0).view(2, 3)}, file)
    file.seek(0)
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
    heard: list[Any] = []
    thread = threading.Thread(target=lambda: heard.append(torch.ones(3).sum().item()))
    thread.start()
    thread.join()
    meta = torch.empty(4, 5, device="meta")
    with FakeTensorMode():
        faked = (torch.ones(3, 4) @ torch.ones(4, 2)).shape
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.sin() + 1, backend="eager")
    return {
        "losses": losses(False),
        "losses in bfloat16": losses(True),
        "loaded": torch.load(file, map_location="cpu")["w"].tolist(),
        "batches": [batch[0].sum().item() for batch in loader],
        "thread": heard,
        "copy": copy.deepcopy(nn.Linear(2, 2)).weight.shape,
        "compiled": compiled(torch.zeros(2)).tolist(),
        "fake": list(faked),
        "meta": [
            str((meta @ meta.T).device),
            meta.is_cuda,
            meta.untyped_storage().nbytes(),
            words_of(meta.sum().item),
        ],
        "numpy": torch.ones(2).numpy().tolist(),
        "values": [
            torch.tensor([1.5, 2.5]).tolist(),
            bool(torch.ones(1)),
            torch.equal(torch.ones(2), torch.ones(2)),
        ],
        "masked": torch.arange(5)[torch.arange(5) > 2].tolist(),
        "available": [
            torch.cuda.is_available(),
            torch.cuda.device_count(),
            torch.accelerator.is_available(),
        ],
        "build": [
            torch.version.cuda,
            torch.backends.cuda.is_built(),
            torch.backends.cudnn.is_available(),
        ],
        "cuda fails": [
            words_of(lambda: torch.ones(1, device="cuda")),
            words_of(lambda: nn.Linear(1, 1).cuda()),
            words_of(lambda: torch.ones(1).to("cuda:0")),
            *(
                words_of(action)
                for action in (torch.cuda.Stream, torch.cuda.synchronize, torch.cuda.CUDAGraph)
            ),
        ],
        "memory": [words_of(torch.cuda.mem_get_info), torch.cuda.memory_allocated()],
        "pinned": words_of(lambda: torch.ones(1).pin_memory()),
        "names": [torch.device("cuda:0").type, repr(torch.ones(1)), torch.Tensor.cuda.__qualname__],
    }


def train_on_the_card() -> None:
    """Everything that puts something in place: autocast, graphs of hooks, threads, streams,
    recurrent networks, saving."""
    model = Net().cuda()
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
    compiled = torch.compile(model)
    for _ in range(2):
        with torch.autocast("cuda"), torch.cuda.stream(torch.cuda.Stream()):
            out = compiled(torch.randn(4, 3, 6, 6).cuda(non_blocking=True))
            loss = F.cross_entropy(out, torch.zeros(4, device="cuda").long())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    loss.item()
    thread = threading.Thread(target=lambda: torch.ones(10, device="cuda").sum().cpu())
    thread.start()
    thread.join()
    data = torch.utils.data.TensorDataset(torch.arange(20.0))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, pin_memory=True):
        batch.cuda()
    torch.save(model.state_dict(), io.BytesIO())
    torch.cuda.synchronize()
    torch.cuda.memory_summary()
    torch.cuda.empty_cache()


def fail_on_the_card() -> None:
    torch.ones(3, device="cuda")
    with torch.autocast("cuda"):
        raise RuntimeError("the script fails")


def try_autocast() -> None:
    """The script has a context of its own that is switched off, and ends in the middle of another
    step."""
    model = nn.Linear(4, 4).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=False):
        loss = model(torch.ones(2, 4, device="cuda")).sum()
    loss.backward()
    assert model(torch.ones(2, 4, device="cuda")).dtype == torch.bfloat16


def fill_the_card() -> None:
    kept = [torch.ones(1, device="cuda")]
    while True:
        kept.append(torch.empty(1 << 30, device="cuda"))


def thread_that_outlives_the_card() -> list[Any]:
    """What a thread sees that was started while the card was there and works when it is gone."""
    used, gone, heard = threading.Event(), threading.Event(), []

    def work() -> None:
        torch.ones(1, device="cuda")
        used.set()
        gone.wait()
        heard.extend([torch.ones(2).sum().item(), words_of(lambda: torch.ones(1, device="cuda"))])

    def start() -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        used.wait(60)
        return thread

    threads: list[threading.Thread] = []
    on_a_card(lambda: threads.append(start()))
    gone.set()
    threads[0].join()
    return heard


def on_a_card(action: Any) -> str:
    what_if = ["autocast"] if action is try_autocast else []
    gpu = imaginary.enter(CARD, 20 << 30, io.StringIO(), what_if)
    try:
        gpu.cards.phase("train")
        assert torch.cuda.is_available()
        return words_of(action)
    finally:
        gpu.leave()


def switched(before: dict[str, Any], but: str = "") -> list[str]:
    """What of `state()` is no longer as it was."""
    after = state()
    return [
        f"{name}: {before[name]} {after[name]}"
        for name in before
        if before[name] != after[name] and name != but
    ]


def main() -> None:
    answers = [smoke()]
    on_a_card(train_on_the_card)  # torch loads and fills what it does at a first use
    smoke()
    ends, changed = [], []
    for action in (train_on_the_card, fail_on_the_card, fill_the_card, try_autocast):
        loaded, first, before = set(sys.modules), snapshot(), state()
        lengths = sizes(first)
        ends.append(on_a_card(action))
        differing = switched(before, but="rng") + differences(first, snapshot(), loaded)
        grown = sizes(first)
        differing += [
            f"{name}: {lengths[name]} {grown[name]}"
            for name in lengths
            if lengths[name] != grown[name]
        ]
        changed += [f"{action.__name__}: {change}" for change in differing]
        answers.append(smoke())
    before, late = state(), thread_that_outlives_the_card()
    changed += [f"late thread: {change}" for change in switched(before)]
    answers.append(smoke())
    print(json.dumps({"ends": ends, "changed": changed, "answers": answers, "late": late}))


if __name__ == "__main__":
    main()
