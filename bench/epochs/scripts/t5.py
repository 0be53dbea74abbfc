"""Training of a T5 made from a configuration: sources of 32 to 512 tokens, targets of 8 to 128."""

import torch
from sequences import VOCABULARY, padded, texts
from shared import flags, loader_of, train
from transformers import T5Config, T5ForConditionalGeneration


def loss_of(model, sources, targets):
    sources, targets = sources.cuda(), targets.cuda()
    labels = targets.masked_fill(targets == 0, -100)
    return model(input_ids=sources, attention_mask=sources != 0, labels=labels).loss


args = flags(2000)
config = T5Config(
    vocab_size=VOCABULARY,
    d_model=256,
    d_kv=32,
    d_ff=1024,
    num_layers=3,
    num_heads=8,
    decoder_start_token_id=0,
)
model = T5ForConditionalGeneration(config).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
train(model, optimizer, loader_of(args, texts, [(32, 512), (8, 128)], padded), loss_of)
