"""Pre-train a GPT-2 configuration from scratch with the Trainer of Transformers: causal language
modelling on packed tokens.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class ModelArguments:
    layers: int = field(default=4, metadata={"help": "transformer blocks"})
    width: int = field(default=256, metadata={"help": "size of the embeddings"})
    block_size: int = field(default=256, metadata={"help": "tokens of a sample"})
    vocabulary: int = field(default=8192, metadata={"help": "size of the vocabulary"})


class PackedTokens(Dataset):
    """Blocks of a long stream of made tokens in which each token depends on the one before."""

    def __init__(self, samples, block_size, vocabulary, seed):
        source = np.random.default_rng(seed)
        steps = source.integers(1, 17, size=(samples, block_size))
        self.tokens = np.cumsum(steps, axis=1) % vocabulary

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = torch.from_numpy(self.tokens[index])
        return {"input_ids": tokens, "labels": tokens.clone()}


def accuracy(prediction):
    predicted, labels = prediction.predictions[:, :-1], prediction.label_ids[:, 1:]
    return {"accuracy": float((predicted == labels).mean())}


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    parser.set_defaults(
        output_dir="out",
        num_train_epochs=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=10,
    )
    model_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    config = GPT2Config(
        vocab_size=model_args.vocabulary,
        n_positions=model_args.block_size,
        n_embd=model_args.width,
        n_layer=model_args.layers,
        n_head=model_args.width // 64,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=not training_args.gradient_checkpointing,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(
        model=model,
        args=training_args,
        data_collator=default_data_collator,
        train_dataset=PackedTokens(4096, model_args.block_size, model_args.vocabulary, seed=1),
        eval_dataset=PackedTokens(256, model_args.block_size, model_args.vocabulary, seed=2),
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
    )
    result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.save_state()
    trainer.log_metrics("train", result.metrics)
    metrics = trainer.evaluate()
    trainer.log_metrics("eval", metrics)
    trainer.save_metrics("eval", metrics)


if __name__ == "__main__":
    main()
