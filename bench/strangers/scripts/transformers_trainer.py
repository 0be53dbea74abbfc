"""Transformers: Trainer and TrainingArguments from the command line, as in its run_clm.py."""

import sys

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
)

data, *rest = sys.argv[1:]
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(rest)
tokenizer = AutoTokenizer.from_pretrained(f"{data}/model")
model = AutoModelForCausalLM.from_pretrained(f"{data}/model")
files = {split: f"{data}/rows/{split}.jsonl" for split in ("train", "test")}
rows = load_dataset("json", data_files=files).map(
    lambda batch: tokenizer(batch["text"], truncation=True), batched=True, remove_columns="text"
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=rows["train"],
    eval_dataset=rows["test"],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model()
