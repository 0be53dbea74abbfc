"""A chat model: trained on prompts and responses, its evaluation answers each held-out prompt,
token by token.
"""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import T5Config, T5ForConditionalGeneration


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=256)
    args = parser.parse_args()

    config = T5Config(
        vocab_size=29_298,
        d_model=768,
        d_kv=64,
        d_ff=3072,
        num_layers=args.layers,
        num_heads=12,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    with torch.device("cuda"):
        model = T5ForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = TensorDataset(*(torch.randint(2, 29_298, (2048, args.tokens)) for _ in range(2)))
    held_out = TensorDataset(torch.randint(2, 29_298, (256, args.tokens)))

    for _ in range(3):
        model.train()
        for prompts, responses in DataLoader(rows, batch_size=args.batch_size, shuffle=True):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=prompts.cuda(), labels=responses.cuda()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            for (prompts,) in DataLoader(held_out, batch_size=args.batch_size):
                answers = model.generate(
                    input_ids=prompts.cuda(), max_new_tokens=args.tokens, do_sample=False
                )
        print(f"loss {loss.item():.3f}, answers of {answers.shape[1]} tokens")


if __name__ == "__main__":
    main()
