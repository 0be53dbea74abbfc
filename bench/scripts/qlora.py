"""Fine-tune a Llama by QLoRA: the base frozen in 4 or 8 bits (bitsandbytes), LoRA on its attention,
gradients checkpointed.

The checkpoint that is loaded has the names and shapes of a configuration (7 billion parameters by
default) and no contents: a file with a hole. So nothing is downloaded, and the model goes the way
that real weights go.
"""

import argparse
import json
import pathlib
import tempfile

import bitsandbytes as bnb
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adamw-8bit": bnb.optim.AdamW8bit,
    "paged-adamw-32bit": bnb.optim.PagedAdamW32bit,
    "paged-adamw-8bit": bnb.optim.PagedAdamW8bit,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=32)
    parser.add_argument("--intermediate", type=int, default=11008)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--double-quant", action="store_true", help="quantize the scales as well")
    parser.add_argument("--compute", choices=("bfloat16", "float16"), default="bfloat16")
    parser.add_argument("--attention", default="sdpa", help="eager, sdpa or flash_attention_2")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    return parser.parse_args()


def write_checkpoint(config, dtype, folder):
    """A checkpoint of `config` as save_pretrained would write it, of which the disk holds the
    header alone.
    """
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    header, end = {}, 0
    for name, parameter in model.named_parameters():
        begin, end = end, end + parameter.numel() * dtype.itemsize
        header[name] = {
            "dtype": {"bfloat16": "BF16", "float16": "F16"}[str(dtype)[6:]],
            "shape": list(parameter.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    config.save_pretrained(folder)


def base_model(args):
    dtype = getattr(torch, args.compute)
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads,
        max_position_embeddings=max(2048, args.length),
        architectures=["LlamaForCausalLM"],
    )
    four_bits = {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": dtype,
        "bnb_4bit_use_double_quant": args.double_quant,
    }
    quantization = (
        BitsAndBytesConfig(load_in_8bit=True)
        if args.bits == 8
        else BitsAndBytesConfig(load_in_4bit=True, **four_bits)
    )
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(config, dtype, pathlib.Path(folder))
        options = {"dtype": dtype, "device_map": {"": 0}, "attn_implementation": args.attention}
        model = AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=quantization, **options
        )
    model.config.use_cache = False
    return model


def main():
    args = arguments()
    torch.manual_seed(0)
    model = prepare_model_for_kbit_training(
        base_model(args), gradient_checkpointing_kwargs={"use_reentrant": False}
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    lora = LoraConfig(
        task_type="CAUSAL_LM",
        r=args.rank,
        lora_alpha=2 * args.rank,
        lora_dropout=0.0,
        target_modules=targets,
    )
    model = get_peft_model(model, lora)
    model.print_trainable_parameters()
    model.train()
    optimizer = OPTIMIZERS[args.optimizer](
        [p for p in model.parameters() if p.requires_grad], lr=1e-4
    )
    tokens = torch.randint(args.vocabulary, (args.samples, args.length))
    for step, (batch,) in enumerate(
        DataLoader(TensorDataset(tokens), batch_size=args.batch_size, shuffle=True)
    ):
        batch = batch.cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(
                f"step {step}: loss {loss.item():.3f}, peak "
                f"{torch.cuda.max_memory_allocated() >> 20} MiB"
            )
    model.save_pretrained("adapter")


if __name__ == "__main__":
    main()
