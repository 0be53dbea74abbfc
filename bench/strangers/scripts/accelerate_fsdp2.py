"""Accelerate: a loop of one's own, prepared for what `accelerate launch` asks for (here FSDP2)."""

import argparse

import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    get_linear_schedule_with_warmup,
)

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--num_epochs", type=int, default=3)
args = parser.parse_args()

accelerator = Accelerator()
tokenizer = AutoTokenizer.from_pretrained(f"{args.data}/model")
files = {split: f"{args.data}/rows/{split}.jsonl" for split in ("train", "test")}
rows = load_dataset("json", data_files=files).map(
    lambda batch: tokenizer(batch["text"], truncation=True), batched=True, remove_columns="text"
)
collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
train_dataloader = DataLoader(
    rows["train"], shuffle=True, collate_fn=collate, batch_size=args.batch_size, drop_last=True
)
eval_dataloader = DataLoader(rows["test"], collate_fn=collate, batch_size=8)
model = AutoModelForCausalLM.from_pretrained(f"{args.data}/model")
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
lr_scheduler = get_linear_schedule_with_warmup(
    optimizer, num_warmup_steps=10, num_training_steps=len(train_dataloader) * args.num_epochs
)
model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
)

for epoch in range(args.num_epochs):
    model.train()
    for batch in train_dataloader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
    model.eval()
    total = []
    for batch in eval_dataloader:
        with torch.no_grad():
            total.append(accelerator.gather_for_metrics(model(**batch).loss.repeat(8)))
    accelerator.print(f"epoch {epoch}: loss {torch.cat(total).mean().item():.3f}")
accelerator.wait_for_everyone()
accelerator.save_model(model, "out")
