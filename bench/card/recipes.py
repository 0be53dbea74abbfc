"""The three recipes, each to a goal, beside their teams' settings: as they began, and as they had
optimized them (docs/cases/index.md). Without a network: images, dialogues and
molecules are made here.
"""

import json
import random
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench import captcha as captchas
from bench import harness, notes, ood_sweep
from bench.captcha_images import prepare, reduced
from bench.card.bench import Bench

DIALOGUES = harness.ROOT / "examples" / "chat" / "dialogues.tsv"
CHAT_ROWS = 552  # as many as bench.notes has
GROUPS = ("C", "N", "O", "C(C)", "C(=O)", "c1ccccc1", "C1CCNCC1", "c1ccncc1", "c1ccsc1")


def device(bench: Bench) -> str:
    return "cuda" if bench.real else "cpu"


def each_side(bench: Bench, sides: tuple[str, ...], make: Any) -> None:
    """Keep what `make(side, the seconds that it may take)` says of each: an equal part of what is
    left, one after the other."""
    numbered = list(enumerate(sides))
    bench.each(numbered, 1, lambda item: make(item[1], bench.left_s / (len(sides) - item[0])))


def captcha(bench: Bench) -> None:
    """Until 90 % are read: 256 images a batch from the card, PNG files in batches of 64, 3,072 in
    an update.
    """
    samples, target, epochs = (8192, 0.9, 20.0) if bench.real else (3072, 0.0, 1.0)
    setup = captchas.Setup(bench.scratch, samples, target, device(bench), epochs)
    prepare(reduced(samples, setup.eval_samples, bench.scratch), bench.scratch / "png")

    def race(side: str, limit_s: float) -> dict[str, Any]:
        return {**asdict(captchas.race(setup, side, 3, limit_s)), "goal": f"{target:.0%} read"}

    each_side(bench, ("tuned", "example", "large-batch"), race)


def chat(bench: Bench) -> None:
    """Until an epoch's mean loss is at the target: the preset's 16 samples in an update, 2 × 4 as
    the silent cap left it, 64 × 4 as it was meant.
    """
    from bench.chatlm_memory import tokenizer_in

    data, cache = dialogues(bench.scratch / "dialogues.jsonl"), bench.scratch / "chat"
    tokenizer = tokenizer_in(bench.scratch / "tokenizer", data, notes.VOCABULARY)
    words = ["--data", str(data), "--tokenizer", str(tokenizer), "--cache", str(cache)]
    words += ["--device", device(bench)]
    target = notes.TARGET if bench.real else 7.0

    def until(side: str, limit_s: float) -> dict[str, Any]:
        seconds = notes.seconds_to_target(notes.CHAT[side], 0, words, limit_s, target)
        row = {"side": side, "goal": f"loss {target:g}", "reached": seconds is not None}
        return {**row, "wall_s": seconds or limit_s}

    each_side(bench, ("brimful", "original", "optimized"), until)


def dialogues(path: Path) -> Path:
    """Those of examples/chat, and sums."""
    rows = [line.split("\t") for line in DIALOGUES.read_text(encoding="utf-8").splitlines()]
    draw = random.Random(0)
    while len(rows) < CHAT_ROWS:
        a, b = draw.randrange(100), draw.randrange(100)
        rows.append([f"{a}加{b}等于几？", f"{a}加{b}等于{a + b}。"])
    named = [json.dumps({"prompt": row[0], "response": row[1]}) + "\n" for row in rows]
    path.write_text("".join(named), encoding="utf-8")
    return path


def molecules(bench: Bench) -> None:
    """Trainings of ten seeds and three data sets to their early stop: as one ensemble, and by a
    process each with 512 and 8,192 pairs (one of each data set is run and stands for all).
    """
    targets, seeds, count = (3, 10, 2000) if bench.real else (1, 2, 200)
    files = [molecules_file(bench.scratch / f"molecules{n}.csv", count, n) for n in range(targets)]
    common: dict[str, Any] = {"datasets": [str(path) for path in files], "seeds": seeds}
    sides = {"sample": 1, "threads": harness.cores(), "device": device(bench)}
    options = SimpleNamespace(**common, **sides)
    pickles, options.pairs = ood_sweep.write_pickles(options, bench.scratch)

    def trained(side: str, limit_s: float) -> dict[str, Any]:
        if side == "ensemble":
            result = ood_sweep.ensemble(options, "fast", bench.scratch)
            areas = [area["mean"] for area in result["auroc"].values()]
        else:
            result = ood_sweep.one_by_one(options, side, pickles)
            areas = [area for of in result["auroc"].values() for area in of]
        seconds = result["seconds" if side == "ensemble" else "seconds_of_all"]
        return {"side": side, "reached": True, "wall_s": seconds, "auroc": areas}

    each_side(bench, ("ensemble", *ood_sweep.SETTINGS), trained)


def molecules_file(path: Path, count: int, seed: int) -> Path:
    """Chains of small groups; in each file some are frequent."""
    draw = random.Random(seed)
    weights = [draw.random() for _ in GROUPS]
    chains = (draw.choices(GROUPS, weights, k=draw.randint(3, 9)) for _ in range(3 * count))
    lines = [f"C{''.join(chain)},{number % 2}" for number, chain in enumerate(chains)]
    path.write_text("\n".join(["smiles,label", *dict.fromkeys(lines)]) + "\n", encoding="utf-8")
    return path
