"""LoRA (PEFT) of a language model of 7 billion parameters, from its configuration alone: the base
frozen in bfloat16.
"""

import argparse

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--samples", type=int, default=10_000)
    args = parser.parse_args()

    config = LlamaConfig(num_hidden_layers=args.layers, use_cache=False)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    lora = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        r=args.rank,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
    )
    model = get_peft_model(model, lora)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    tokens = torch.zeros(args.samples, 1, dtype=torch.long).expand(-1, args.max_length)
    for (batch,) in DataLoader(TensorDataset(tokens), batch_size=args.batch_size, shuffle=True):
        batch = batch.cuda()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
