"""Supervised fine-tuning of a Llama made from a configuration on prompts and completions of
various lengths: padded, in bfloat16, with the loss of the completions alone.
"""

import torch
from sequences import VOCABULARY, texts
from shared import flags, loader_of
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

IGNORED = -100


def collate(samples):
    tokens = pad_sequence([torch.cat(sample) for sample in samples], batch_first=True)
    labels = [
        torch.cat([torch.full_like(prompt, IGNORED), completion]) for prompt, completion in samples
    ]
    return {
        "input_ids": tokens,
        "attention_mask": (tokens != 0).long(),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


args = flags(2500)
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
model.train()
loader = loader_of(args, texts, [(8, 192), (8, 320)], collate)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
scheduler = get_cosine_schedule_with_warmup(optimizer, 10, len(loader))
for batch in loader:
    batch = {name: values.cuda(non_blocking=True) for name, values in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
