"""What the training scripts beside this file share: optimizers and autocast by name."""

import argparse
import contextlib

import torch

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
    "adamw-loop": lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=False),
}
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def parser(description, optimizer="adamw"):
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("--batch-size", type=int, required=True)
    made.add_argument("--steps", type=int, default=14)
    made.add_argument("--optimizer", choices=OPTIMIZERS, default=optimizer)
    made.add_argument("--amp", choices=[*HALVES, "none"], default="none")
    return made


def autocast(amp):
    return torch.autocast("cuda", dtype=HALVES[amp]) if amp in HALVES else contextlib.nullcontext()


def scaler(amp):
    return torch.amp.GradScaler("cuda", enabled=amp == "fp16")


def update(loss, optimizer, scaler):
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
