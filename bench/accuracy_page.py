"""The table and the figure of docs/how/accuracy.md: estimate ÷ measured, by kind of program.

`make accuracy-page` writes both from bench/results. Rows that a constant was fitted to are left
out.
"""

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

from bench.harness import MIB, RESULTS, ROOT

PAGE = ROOT / "docs" / "how" / "accuracy.md"
FIGURE = PAGE.with_name("accuracy.svg")
BEGIN, END = "<!-- table by `make accuracy-page` -->", "<!-- end of the table -->"
# jobs of the H200's result whose convolutions or recurrent networks ask cuDNN for workspaces
CUDNN = ("resnet", "separable", "unet", "gan", "lstm")

Ratios = dict[str, list[float]]  # kind of program -> estimate ÷ measured


def read(name: str) -> Any:
    path = max(RESULTS.glob(name))
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return json.loads(text)


def memory() -> Ratios:
    ratios: Ratios = {}
    seen = set((ROOT / "bench" / "timm_seen.txt").read_text().splitlines())
    context = read("timm-*2026-11.json")["held_out"]["context_bytes"]
    ratios["vision models of timm, A100, device"] = [
        (row["reserved_bytes"] + context) / (row["device_peak_mib"] * MIB)
        for row in read("timm-*.rows.json.gz")
        if row["model"] not in seen
    ]
    for part in ("allocated", "reserved", "device"):
        ratios[f"language models, fine-tuned, T4 and A100, {part}"] = [
            row["predicted"][part] / row["measured"][part]
            for row in read("llm-*.rows.json.gz")
            if row["measured"][part]
        ]
    rows = read("measured-h200-*.json")["rows"]
    for kind, cudnn in (("transformers and perceptrons", False), ("convolutions and LSTMs", True)):
        for part in ("allocated", "reserved"):
            ratios[f"{kind}, H200, {part}"] = [
                row["predicted"][f"{part}_bytes"] / row["measured"][f"{part}_bytes"]
                for row in rows
                if row["job"].startswith(CUDNN) == cudnn
            ]
    return ratios


def step_times() -> Ratios:
    return {
        "vision models of timm, RTX 3090, step time": [
            row["predicted_s"] / row["measured_s"]
            for row in read("clock-*.rows.json.gz")
            if not row["seen"]
        ],
        "language models, fine-tuned, T4 and A100, step time": [
            row["predicted"]["step"] / row["measured"]["step"]
            for row in read("llm-*.rows.json.gz")
            if row["measured"]["step"]
        ],
        "all jobs, H200, calibrated, step time": [
            row["predicted"]["step_s"] / row["measured"]["step_s"]
            for row in read("measured-h200-*.json")["rows"]
        ],
    }


def table(ratios: Ratios) -> str:
    head = (
        "| programs, card, what | rows | min | median | max | below 1 |\n|---|---|---|---|---|---|"
    )
    lines = [
        f"| {kind} | {len(of)} | {min(of):.2f} | {statistics.median(of):.3f} | {max(of):.2f} "
        f"| {sum(ratio < 1 for ratio in of)} |"
        for kind, of in ratios.items()
    ]
    return "\n".join([head, *lines])


def figure(ratios: Ratios) -> str:
    """A row of dots a kind. Its greys and its blue can be read on white and on black."""
    width, left, height, low, high = 900, 400, 26, 0.5, 1.5

    def x(ratio: float) -> float:
        clipped = min(max(ratio, low), high)
        return left + (clipped - low) / (high - low) * (width - left - 20)

    tall = 40 + height * len(ratios)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {tall}" role="img" '
        'font-family="sans-serif" font-size="13" fill="#80868f">',
        "<title>Estimate divided by measured, a dot a row</title>",
    ]
    for tick in (0.5, 0.75, 1.0, 1.25, 1.5):
        at = x(tick)
        colour = "#c2513c" if tick == 1.0 else "#80868f55"
        lines.append(f'<path d="M{at:.1f} 8V{tall - 26}" stroke="{colour}"/>')
        lines.append(f'<text x="{at:.1f}" y="{tall - 8}" text-anchor="middle">{tick:g}</text>')
    for number, (kind, of) in enumerate(ratios.items()):
        y = 22 + height * number
        lines.append(f'<text x="{left - 14}" y="{y + 4}" text-anchor="end">{kind}</text>')
        for ratio in of:
            lines.append(f'<circle cx="{x(ratio):.1f}" cy="{y}" r="3.5" fill="#4a90d988"/>')
    return "\n".join([*lines, "</svg>\n"])


def page_with(text: str, inside: str) -> str:
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{inside}\n\n{END}{after}"


def write(page: Path = PAGE) -> None:
    ratios = {**memory(), **step_times()}
    page.write_text(page_with(page.read_text("utf-8"), table(ratios)), "utf-8")
    page.with_suffix(".svg").write_text(figure(ratios), "utf-8")


if __name__ == "__main__":
    write()
