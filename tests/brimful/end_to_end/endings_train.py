"""What `test_endings` signals: `python endings_train.py KIND [--resume]`. KIND is a training on the
engine, a plain loop that saves on a signal, Transformers' Trainer, or Lightning. All have workers,
and write to `log`: "began N", the moments "train", "eval", "writing" and "removing", and "saved N"
once a checkpoint of N steps is whole.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

WORKERS, EVERY = 2, 3
Path("log").touch()


def log(words: str) -> None:
    with open("log", "a") as file:
        file.write(f"{words}\n")


log("start")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.functional import mse_loss  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

torch.set_num_threads(1)


class Slow(Dataset):
    def __init__(self, length: int):
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.005)
        x = torch.rand(4, generator=torch.Generator().manual_seed(index))
        return {"x": x, "y": x.sum(0, keepdim=True)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Any, y: Any) -> Any:
        log("train" if self.training else "eval")
        return {"loss": mse_loss(self.layer(x), y)}


def by_engine() -> None:
    from brimful_train import (
        BatchingConfig,
        CheckpointConfig,
        Config,
        DataConfig,
        Task,
        exit_codes,
        fit,
    )
    from brimful_train.checkpoints.checkpoint import Disk
    from brimful_train.training_state import TrainingState

    def slow(owner: Any, name: str, moment: str, then: str = "") -> None:
        original = getattr(owner, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            log(moment)
            time.sleep(0.3)
            result = original(self, *args, **kwargs)
            if then:
                log(f"{then} {self.counts.updates}")
            return result

        setattr(owner, name, call)

    def resume(self: Any, original: Any = TrainingState.resume) -> None:
        original(self)
        log(f"began {self.counts.updates}")

    TrainingState.resume = resume  # type: ignore[method-assign]
    slow(Disk, "write_tensors", "writing")
    slow(Disk, "remove", "removing")
    slow(TrainingState, "save", "saves", "saved")

    def loss(model: Any, batch: Any) -> Any:
        return model(**batch)["loss"]

    config = Config(
        out=Path("out"),
        epochs=10_000,
        device="cpu",
        batch=BatchingConfig(micro_batch=8, eval_batch=8),
        checkpoints=CheckpointConfig(
            every_steps=EVERY, every_epochs=None, keep_last=1, keep_best=False
        ),
        data=DataConfig(workers=WORKERS),
        eval_every_epochs=0.5,
    )
    with exit_codes():
        fit(Task("endings", Model(), loss, Slow(64), Slow(64)), config)


def by_plain_loop() -> None:
    model, step, told = Model(), 0, []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if "--resume" in sys.argv and os.path.exists("plain.pt"):
        state = torch.load("plain.pt")
        model.load_state_dict(state["model"])
        step = state["step"]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: told.append(number))
    log(f"began {step}")
    while True:
        for batch in DataLoader(Slow(64), 8, num_workers=WORKERS):
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()
            step += 1
            if told or step % EVERY == 0:
                log("writing")
                time.sleep(0.2)
                torch.save({"model": model.state_dict(), "step": step}, "new.pt")
                os.replace("new.pt", "plain.pt")
                log(f"saved {step}")
            if told:
                sys.exit(128 + told[0])


def by_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Says(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            log(f"began {state.global_step}")

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            log(f"saved {state.global_step}")

    arguments = TrainingArguments(
        output_dir="trainer",
        max_steps=100_000,
        per_device_train_batch_size=8,
        dataloader_num_workers=WORKERS,
        save_steps=EVERY,
        save_total_limit=1,
        logging_steps=1_000_000,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), arguments, train_dataset=Slow(64), callbacks=[Says()])
    kept = any(Path("trainer").glob("checkpoint-*"))
    trainer.train(resume_from_checkpoint="--resume" in sys.argv and kept)


def by_lightning() -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def on_train_start(self) -> None:
            log(f"began {self.trainer.global_step}")

        def on_save_checkpoint(self, checkpoint: Any) -> None:
            log(f"saved {self.trainer.global_step}")

    callbacks = [
        OnExceptionCheckpoint("lightning", "last"),
        ModelCheckpoint(
            "lightning", "last", every_n_train_steps=EVERY, enable_version_counter=False
        ),
    ]
    trainer = lightning.Trainer(
        max_steps=100_000,
        accelerator="cpu",
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    kept = Path("lightning/last.ckpt")
    path = str(kept) if "--resume" in sys.argv and kept.exists() else None
    trainer.fit(Module(), DataLoader(Slow(64), 8, num_workers=WORKERS), ckpt_path=path)


if __name__ == "__main__":
    {
        "engine": by_engine,
        "plain": by_plain_loop,
        "trainer": by_trainer,
        "lightning": by_lightning,
    }[sys.argv[1]]()
