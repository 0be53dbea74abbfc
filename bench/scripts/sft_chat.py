"""Supervised fine-tuning of a small Llama on made dialogues, without TRL: the loss is of the
answers alone.
"""

import argparse
import math
import random

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

PAD, USER, ASSISTANT, END = 0, 1, 2, 3
VOCABULARY = 4096
IGNORED = -100


class Dialogues(Dataset):
    """Dialogues of one to five turns; an answer repeats its question backwards."""

    def __init__(self, count, seed):
        source = random.Random(seed)
        self.dialogues = []
        for _ in range(count):
            turns = []
            for _ in range(source.randint(1, 5)):
                question = [source.randrange(4, VOCABULARY) for _ in range(source.randint(4, 40))]
                turns.append((question, question[::-1]))
            self.dialogues.append(turns)

    def __len__(self):
        return len(self.dialogues)

    def __getitem__(self, index):
        tokens, labels = [], []
        for question, answer in self.dialogues[index]:
            tokens += [USER, *question, ASSISTANT, *answer, END]
            labels += [IGNORED] * (len(question) + 2) + [*answer, END]
        return torch.tensor(tokens), torch.tensor(labels)


def collate(samples):
    tokens, labels = zip(*samples, strict=True)
    tokens = pad_sequence(tokens, batch_first=True, padding_value=PAD)
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != PAD).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for batch in loader:
        batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        tokens = int((batch["labels"][:, 1:] != IGNORED).sum())
        total, count = total + loss.item() * tokens, count + tokens
    model.train()
    return total / max(count, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-4)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda")
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=PAD,
        bos_token_id=USER,
        eos_token_id=END,
    )
    model = LlamaForCausalLM(config).to(device)
    train_loader = DataLoader(
        Dialogues(2048, 1), args.batch_size, shuffle=True, collate_fn=collate, pin_memory=True
    )
    eval_loader = DataLoader(
        Dialogues(128, 2), args.batch_size, collate_fn=collate, pin_memory=True
    )
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=True)
    updates = math.ceil(len(train_loader) / args.accumulate) * args.epochs
    scheduler = get_cosine_schedule_with_warmup(optimizer, updates // 20, updates)

    best = float("inf")
    for epoch in range(args.epochs):
        progress = tqdm(train_loader, desc=f"epoch {epoch}")
        for step, batch in enumerate(progress):
            batch = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(**batch).loss / args.accumulate
            loss.backward()
            if (step + 1) % args.accumulate == 0 or step + 1 == len(train_loader):
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad(set_to_none=True)
                progress.set_postfix(loss=loss.item() * args.accumulate, norm=norm.item())
        found = evaluate(model, eval_loader, device)
        print(f"epoch {epoch}: loss of the answers {found:.3f}")
        if found < best:
            best = found
            torch.save(model.state_dict(), "best.pt")


if __name__ == "__main__":
    main()
