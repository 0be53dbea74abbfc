"""Whisper small from its configuration: bfloat16, gradient checkpointing, a plain loop."""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import WhisperConfig, WhisperForConditionalGeneration


class Recordings(Dataset):
    def __len__(self):
        return 2_000

    def __getitem__(self, index):
        return torch.zeros(80, 3_000), torch.randint(0, 50_000, (120,))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    halves = ("encoder", "decoder")
    sizes = {f"{half}_{what}": n for half in halves for what, n in
             (("layers", 12), ("attention_heads", 12), ("ffn_dim", 3072))}  # fmt: skip
    model = WhisperForConditionalGeneration(WhisperConfig(d_model=768, use_cache=False, **sizes))
    model.cuda().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for sounds, words in DataLoader(Recordings(), args.batch_size, shuffle=True, num_workers=2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_features=sounds.cuda(), labels=words.cuda()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
