"""Sentence embeddings: pairs of texts of uneven length through a BERT of six layers, each text's
partner in the batch being its class.
"""

import argparse

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertModel


class Pairs(Dataset):
    def __len__(self):
        return 8_000

    def __getitem__(self, index):
        return [torch.randint(5, 30_000, (8 + index * k % 200,)) for k in (31, 57)]


def padded(rows):
    return [
        torch.nn.utils.rnn.pad_sequence(side, batch_first=True) for side in zip(*rows, strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=6), add_pooling_layer=False).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)

    def embedded(ids):
        mask = (ids != 0).long()
        states = model(ids, attention_mask=mask).last_hidden_state
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(mean, dim=-1)

    for left, right in DataLoader(Pairs(), args.batch_size, shuffle=True, collate_fn=padded):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = 20 * embedded(left.cuda()) @ embedded(right.cuda()).T
            loss = F.cross_entropy(scores, torch.arange(len(scores), device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
