"""Fine-tune a language model as others did whose measurements are known: one JSON object says
which, and how.

    python finetune_llm.py '{"recipe": "adapters", "model": "SmolLM2-135M", "attention": "eager",
    "batch": 2, "length": 512}'

Models are built from their public configurations alone; no weight is downloaded or read. The
recipes are those of
public benches: `trainer` (fms-acceleration: Transformers' Trainer on packed tokens, under FSDP
where there are more ranks), `encoder` (torch-preflight), `adapters` and `quantized` (fitcheck) and
`chunked` (litgpt).
"""

import contextlib
import functools
import json
import os
import sys
from types import SimpleNamespace

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, Trainer, TrainingArguments

STEPS = 5
LLAMA = {"model_type": "llama", "rms_norm_eps": 1e-5, "vocab_size": 32000}
CONFIGS = {
    "mistralai/Mistral-7B-v0.1": {
        # One token more than the model's own: fms-hf-tuning adds one for padding
        # (tuning/sft_trainer.py).
        "model_type": "mistral",
        "vocab_size": 32001,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
    },
    "TinyLlama-1.1B": {
        **LLAMA,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    },
    "SmolLM2-135M": {
        **LLAMA,
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
    "distilbert-base-uncased": {"model_type": "distilbert"},  # the classes' own defaults
    "bert-base-uncased": {"model_type": "bert"},
}


def build(of, dtype):
    """The model on the host, in memory that nobody wrote to: 14 GB of weights cost nothing."""
    words = dict(CONFIGS[of["model"]])
    config = AutoConfig.for_model(words.pop("model_type"), **words, use_cache=False)
    attention = of.get("attention")
    if attention == "flash":
        attention = "flash_attention_2"
    kind = AutoModel if config.model_type in ("bert", "distilbert") else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(
            config, dtype=dtype, **({"attn_implementation": attention} if attention else {})
        )
    model.to_empty(device="cpu").tie_weights()
    return model


def with_adapters(model, rank, alpha, targets, dropout, in_float32):
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora, autocast_adapter_dtype=in_float32)


def shifted_loss(logits, labels, **words):
    """As Transformers 4.46 to 4.49 computed it (loss/loss_utils.py, ForCausalLMLoss). Beside the
    logits, which their caller holds, there is a float32 copy, and one of that without the last
    token: with the softmax 14 bytes a logit, later 12."""
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    return cross_entropy(shifted.view(-1, shifted.shape[-1]), labels[..., 1:].contiguous().view(-1))


class Packed(torch.utils.data.Dataset):
    def __init__(self, length, vocabulary, count):
        self.length, self.vocabulary, self.count = length, vocabulary, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        tokens = torch.randint(
            0, self.vocabulary, (self.length,), generator=torch.Generator().manual_seed(index)
        )
        # A collator that pads makes a mask, where there is nothing to pad too.
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones_like(tokens)}


def checkpoint_around_fsdp():
    """As Transformers 4.48 did: a model checkpoints its call of a layer, which FSDP has wrapped by
    then. Now a layer does so with its own forward pass, within FSDP's wrapping. The old way keeps
    two more hidden states a layer up to the end of the
    backward pass: FSDP's hook on the input of a layer without trained weights
    (register_multi_grad_hook) holds it, a leaf there, and its gradient."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from transformers.modeling_layers import GradientCheckpointingLayer

    plain = torch.nn.Module.__call__

    def checkpointed(self, *args, **words):
        if not (isinstance(self.module, GradientCheckpointingLayer) and self.training):
            return plain(self, *args, **words)
        self.module.gradient_checkpointing = False
        return checkpoint(functools.partial(plain, self, **words), *args, use_reentrant=True)

    FullyShardedDataParallel.__call__ = checkpointed


def trainer(of):
    """fms-acceleration, scripts/benchmarks: torch 2.4.1, Transformers 4.48.1, PEFT 0.13.2, TRL
    0.13.0, flash-attn 2.7.3.
    """
    model = build(of, torch.bfloat16)
    model.loss_function = shifted_loss
    if of["method"] == "lora":
        model = with_adapters(model, 16, 16, ["q_proj", "k_proj", "v_proj", "o_proj"], 0.1, True)
        model.enable_input_require_grads()
    sharded = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if sharded:
        checkpoint_around_fsdp()
    fsdp = {"fsdp_version": 1, "backward_prefetch": "backward_pre"}  # accelerate.yaml
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=of["batch"],
        max_steps=20,
        optim="adamw_torch",
        adam_epsilon=1e-4,
        weight_decay=0.01,
        warmup_steps=10,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        bf16=False,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
        skip_memory_metrics=False,
        **({"fsdp": "full_shard auto_wrap", "fsdp_config": fsdp} if sharded else {}),
    )
    data = Packed(of["length"], model.config.vocab_size, 20 * of["batch"])
    Trainer(model=model, args=arguments, train_dataset=data).train()


def loop(of, model, forward, loss_of, around=contextlib.nullcontext):
    """An ordinary loop over one batch of made-up tokens. What the model gave lives until the step's
    end.
    """
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    tokens = torch.randint(0, model.config.vocab_size, (of["batch"], of["length"]), device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with around():
            out = forward(model, tokens)
            loss = loss_of(out, tokens)
        loss.backward()
        optimizer.step()

    for _ in range(STEPS):
        step()


def encoder(of):
    """torch-preflight, tests/calibration/measure_cuda.py: the mean square of the last hidden state
    under autocast. PyTorch says of a T4 too that it supports bfloat16, which it emulates; efficient
    attention does not take that before Ampere."""
    model = build(of, torch.float32).cuda()
    dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    loop(
        of,
        model,
        lambda model, tokens: model(input_ids=tokens),
        lambda out, _: out.last_hidden_state.float().pow(2).mean(),
        lambda: torch.autocast("cuda", dtype=dtype),
    )


def adapters(of):
    """fitcheck, scripts/measure.py: LoRA of rank 32 on a base in float16."""
    _as_fitcheck(of, build(of, torch.float16).cuda())


def quantized(of):
    """The same on a base in nf4, loaded as checkpoints are (bench/scripts/qlora.py), with PEFT
    0.19, which kept the cache.
    """
    from peft import prepare_model_for_kbit_training
    from scripts import qlora

    words = CONFIGS[of["model"]]
    short = {"hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
    short |= {
        "kv_heads": "num_key_value_heads",
        "intermediate": "intermediate_size",
        "vocabulary": "vocab_size",
    }
    rest = {
        "length": of["length"],
        "bits": 4,
        "double_quant": False,
        "compute": "float16",
        "attention": of["attention"],
    }
    base = qlora.base_model(
        SimpleNamespace(**{name: words[long] for name, long in short.items()}, **rest)
    )
    _as_fitcheck(of, prepare_model_for_kbit_training(base, auto_clear_cache=False))


def _as_fitcheck(of, model):
    """With "sdpa" it repeats heads and allows the efficient kernel alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    model = with_adapters(model, 32, 64, ["q_proj", "k_proj", "v_proj", "o_proj"], 0.0, True)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    within = contextlib.nullcontext()
    if of["attention"] == "sdpa":
        torch.nn.functional.scaled_dot_product_attention = _with_repeated_heads(
            torch.nn.functional.scaled_dot_product_attention
        )
        within = sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)
    with within:
        loop(
            of,
            model,
            lambda model, tokens: model(input_ids=tokens, labels=tokens),
            lambda out, _: out.loss,
        )


def _with_repeated_heads(attention):
    def repeated(query, key, value, *args, **kwargs):
        groups = query.size(-3) // key.size(-3)
        if groups > 1:
            key, value = (tensor.repeat_interleave(groups, dim=-3) for tensor in (key, value))
            kwargs.pop("enable_gqa", None)
        return attention(query, key, value, *args, **kwargs)

    return repeated


def chunked(of):
    """litgpt, finetune/lora.py: its model and loss, adapters on query and value, the head in chunks
    of 128 tokens. Fabric's bf16-true gives logits out in float32."""
    import lightning
    from litgpt.lora import GPT, Config, mark_only_lora_as_trainable
    from litgpt.utils import chunked_cross_entropy

    adapters = {
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
        "lora_query": True,
        "lora_value": True,
    }
    fabric = lightning.Fabric(devices=1, precision="bf16-true")
    with fabric.init_module():
        model = GPT(
            Config.from_name({"phi-1.5": "phi-1_5"}.get(of["model"], of["model"]), **adapters)
        )
    mark_only_lora_as_trainable(model)
    model = fabric.setup_module(model)
    model.max_seq_length = of["length"]
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=3e-4, weight_decay=0.02
    )
    optimizer = fabric.setup_optimizers(optimizer)
    tokens = fabric.to_device(torch.randint(0, 32000, (of["batch"], of["length"])))

    def step():
        logits = model(tokens, lm_head_chunk_size=128)
        logits[-1] = logits[-1][..., :-1, :]
        fabric.backward(chunked_cross_entropy(logits, tokens[..., 1:]))
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(STEPS):
        step()


if __name__ == "__main__":
    row = json.loads(sys.argv[1])
    recipes = {
        "trainer": trainer,
        "encoder": encoder,
        "adapters": adapters,
        "quantized": quantized,
        "chunked": chunked,
    }
    recipes[row["recipe"]](row)
