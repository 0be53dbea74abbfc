"""The network: T5 of Transformers, whose forward pass gives the loss in pieces where it is given
labels.
"""

import textwrap
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

from brimful.errors import UsageError
from recipes.chatlm.loss import IGNORED, summed_cross_entropy
from recipes.chatlm.settings import ModelOptions

SIZES: dict[str, dict[str, int]] = {
    # ChatLM-mini-Chinese's own: 187.7 million parameters with its 29,298 tokens
    "chatlm-0.2b": {
        "d_model": 768,
        "d_ff": 3072,
        "d_kv": 64,
        "num_heads": 12,
        "num_layers": 10,
        "num_decoder_layers": 10,
    },
    "tiny": {
        "d_model": 128,
        "d_ff": 512,
        "d_kv": 32,
        "num_heads": 4,
        "num_layers": 2,
        "num_decoder_layers": 2,
    },
}
TIED = (
    "lm_head.weight",
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "shared.weight",
)  # one matrix


class ChatModel(T5ForConditionalGeneration):
    """`generate` is Transformers' own."""

    loss_chunk = 0

    def forward(self, input_ids=None, attention_mask=None, labels=None, **more: Any) -> Any:
        """With labels (batch, length), IGNORED where they are padding: (summed loss, number of
        tokens). Else as T5.
        """
        if labels is None:
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, **more)
        encoded = self.encoder(input_ids=input_ids, attention_mask=attention_mask)[0]
        decoded = self.decoder(
            input_ids=self._shift_right(labels),
            encoder_hidden_states=encoded,
            encoder_attention_mask=attention_mask,
            use_cache=False,
        )[0]
        if self.config.scale_decoder_outputs:
            decoded = decoded * self.model_dim**-0.5
        total = summed_cross_entropy(
            decoded.flatten(0, 1), self.lm_head.weight, labels.flatten(), self.loss_chunk
        )
        return total, (labels != IGNORED).sum()


def chat_model(options: ModelOptions, vocabulary: int, padding: int, end: int) -> ChatModel:
    """With new weights, or those of --init. Raises UsageError where those do not belong to it."""
    config = T5Config(
        vocab_size=vocabulary,
        feed_forward_proj="relu",
        dropout_rate=options.dropout,
        pad_token_id=padding,
        eos_token_id=end,
        decoder_start_token_id=padding,  # type: ignore[call-arg]
        **SIZES[options.model],  # type: ignore[arg-type]
    )
    model = ChatModel(config)
    model.loss_chunk = options.loss_chunk
    if options.init is not None:
        _load(model, options.init)
    if options.freeze == "encoder":
        for parameter in (*model.encoder.parameters(), *model.shared.parameters()):
            parameter.requires_grad = False
    return model


def _state_of(path: Path) -> dict[str, torch.Tensor]:
    file = path / "model.safetensors" if path.is_dir() else path
    try:
        if file.is_file():
            return load_file(file)
        whole = T5ForConditionalGeneration.from_pretrained(
            path, local_files_only=True
        )  # from several files, or .bin
        return dict(whole.state_dict())
    except (OSError, SafetensorError, ValueError) as error:
        raise UsageError(
            f"--init {path}: no weights can be read from there ({str(error).splitlines()[0]}).",
            suggestion="Name a safetensors file, or a folder that Transformers saved a T5 in.",
        ) from error


def _load(model: ChatModel, path: Path) -> None:
    """Of names that are one tied matrix one is enough."""
    state = _state_of(path)
    tied = [state[name] for name in TIED if name in state]
    if tied and len(tied[0]) != model.config.vocab_size:
        raise UsageError(
            f"{path} has a vocabulary of {len(tied[0]):,} tokens, and the tokenizer has "
            f"{model.config.vocab_size:,}.",
            "Each row of the embedding is one token of the tokenizer that the weights were "
            "trained with.",
            "Give that tokenizer with --tokenizer.",
        )
    state = {name: tied[0] for name in TIED if tied} | state
    try:
        model.load_state_dict(state)
    except (
        RuntimeError
    ) as error:  # PyTorch's own list of what is missing, unexpected, or of another shape
        problem = textwrap.shorten(str(error).partition("\n")[2], 300, placeholder=" ...")
        raise UsageError(
            f"{path} is of another network: {problem}", suggestion="Choose its --model."
        ) from None
