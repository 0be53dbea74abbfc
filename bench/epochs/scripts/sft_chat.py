"""Supervised fine-tuning of a Llama made from a configuration on prompts and completions of
various lengths: padded, in bfloat16, with the loss of the completions alone.
"""

import argparse

import torch
from sequences import Pairs
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

VOCABULARY, IGNORED = 8000, -100


def collate(samples):
    tokens = [torch.cat(sample) for sample in samples]
    labels = [
        torch.cat([torch.full_like(prompt, IGNORED), completion]) for prompt, completion in samples
    ]
    tokens = pad_sequence(tokens, batch_first=True)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).cuda()
    loader = DataLoader(
        Pairs(args.samples, (8, 192), (8, 320), VOCABULARY),
        args.batch_size,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 10, len(loader))
    model.train()
    for batch in loader:
        batch = {name: values.cuda(non_blocking=True) for name, values in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
