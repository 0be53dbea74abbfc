"""Fine-tune a GPT-2 with LoRA (PEFT): the base stays frozen in bfloat16, the adapters learn."""

import argparse

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def sequences(count, length, vocabulary, seed):
    source = torch.Generator().manual_seed(seed)
    steps = torch.randint(1, 9, (count, length), generator=source)
    return TensorDataset(steps.cumsum(1) % vocabulary)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=16384,
        n_positions=args.length,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=args.width // 64,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).to(torch.bfloat16)
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=args.rank,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["c_attn"],
        fan_in_fan_out=True,
    )
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()
    model.cuda()

    train_loader = DataLoader(
        sequences(2048, args.length, 16384, 1), batch_size=args.batch_size, shuffle=True
    )
    eval_loader = DataLoader(sequences(128, args.length, 16384, 2), batch_size=args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 10, args.epochs * len(train_loader))
    for epoch in range(args.epochs):
        model.train()
        for step, (tokens,) in enumerate(train_loader):
            tokens = tokens.cuda()
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}")
        model.eval()
        losses = []
        with torch.no_grad():
            for (tokens,) in eval_loader:
                tokens = tokens.cuda()
                losses.append(model(input_ids=tokens, labels=tokens).loss)
        print(f"epoch {epoch}: perplexity {torch.exp(torch.stack(losses).mean()).item():.2f}")
    model.save_pretrained("adapter")


if __name__ == "__main__":
    main()
