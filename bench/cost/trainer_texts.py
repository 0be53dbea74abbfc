"""Transformers' Trainer on texts of uneven length: a Qwen2 of 0.36 billion parameters in bfloat16
with two accumulation steps, or LoRA adapters beside it.
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, Trainer, TrainingArguments


class Texts(Dataset):
    def __init__(self, count, longest, vocabulary):
        source = torch.Generator().manual_seed(0)
        share = torch.rand(count, generator=source) ** 2
        lengths = (32 + share * (longest - 32)).long().tolist()
        self.rows = [torch.randint(0, vocabulary, (n,), generator=source) for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def padded(rows):
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])[:, None]
    mask = (torch.arange(ids.size(1)) < lengths).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lora", action="store_true")
    args = parser.parse_args()
    config = Qwen2Config(
        vocab_size=32_000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=24,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    model = Qwen2ForCausalLM(config)
    if args.lora:
        from peft import LoraConfig, get_peft_model

        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        model = get_peft_model(model, LoraConfig(r=16, target_modules=targets))
    arguments = TrainingArguments(
        output_dir="trained",
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        gradient_accumulation_steps=2,
        bf16=True,
        max_steps=500,
        eval_strategy="steps",
        eval_steps=100,
        report_to=[],
        remove_unused_columns=False,
    )
    train, held_out = Texts(4_000, 1024, 32_000), Texts(200, 1024, 32_000)
    Trainer(model, arguments, padded, train, held_out).train()


if __name__ == "__main__":
    main()
