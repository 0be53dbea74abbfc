"""After the training: answers, a chat, and an evaluation by sacrebleu."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from sacrebleu.metrics.chrf import CHRF
from torch import nn
from transformers import TextStreamer

from brimful.errors import UsageError
from brimful.units import counted
from brimful_train.data.room import host_now
from brimful_train.distributed.ranks import device_for
from brimful_train.model.threads import choose_threads
from brimful_train.training_state import load_model
from recipes.chatlm.data import encode, fingerprint, load_tokenizer, pad
from recipes.chatlm.loss import IGNORED
from recipes.chatlm.model import chat_model
from recipes.chatlm.recipe import FILE_NAME, ChatDescription, bleu, loss
from recipes.chatlm.rows import read_rows
from recipes.chatlm.settings import AnswerOptions, DataOptions, ModelOptions
from recipes.common.description import description_of, trained_weights
from recipes.common.pieces import in_pieces
from recipes.common.running import say

AT_ONCE = 64  # prompts. Assumed; fewer where memory does not hold them


class Chat:
    """A trained model that answers."""

    def __init__(self, options: AnswerOptions) -> None:
        self._options, self.device = options, device_for(options.device)
        choose_threads(host_now(self.device), self.device)
        out, self.trained_on = description_of(options.checkpoint, FILE_NAME, ChatDescription)
        self.tokenizer = load_tokenizer(out / "tokenizer")
        if fingerprint(self.tokenizer) != self.trained_on.tokenizer:
            raise UsageError(
                f"The tokenizer in {out / 'tokenizer'} has {len(self.tokenizer):,} tokens and is "
                "not the one of the training, "
                f"which had {self.trained_on.vocabulary:,}.",
                "Its tokens mean nothing to the model.",
                "Put the folder back that the training wrote.",
            )
        kind = ModelOptions(self.trained_on.model)  # type: ignore[arg-type]
        model = chat_model(
            kind,
            self.trained_on.vocabulary,
            self.tokenizer.pad_token_id,
            self.tokenizer.eos_token_id,
        )
        load_model(model, trained_weights(options.checkpoint), str(options.checkpoint))
        self._model: Any = nn.Module.to(
            model, self.device
        ).eval()  # Any: no type of Transformers that generates
        torch.manual_seed(options.seed)

    def _padded(
        self, texts: Sequence[str], most: int, value: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, mask = pad(
            [torch.tensor(tokens) for tokens, _ in encode(self.tokenizer, texts, most)], value
        )
        return tokens.to(self.device), mask.to(self.device)

    @torch.inference_mode()
    def answers(self, prompts: Sequence[str], streamer: TextStreamer | None = None) -> list[str]:
        """One for each prompt, cut as in the training."""
        tokens, mask = self._padded(
            prompts, self.trained_on.max_prompt_tokens, self.tokenizer.pad_token_id
        )
        most, temperature = (
            self._options.max_new_tokens or self.trained_on.max_response_tokens,
            self._options.temperature,
        )
        draws = (
            {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        )
        made = self._model.generate(
            input_ids=tokens, attention_mask=mask, max_new_tokens=most, streamer=streamer, **draws
        )
        return [
            text.strip()
            for text in self.tokenizer.batch_decode(made.tolist(), skip_special_tokens=True)
        ]

    @torch.inference_mode()
    def scored(self, rows: Sequence[tuple[str, str]]) -> tuple[list[str], float, int]:
        """Answers to the prompts; and of the responses, cut as in the training, the summed loss and
        the tokens.
        """
        prompts, responses = zip(*rows, strict=True)
        labels, _ = self._padded(responses, self.trained_on.max_response_tokens, IGNORED)
        lost = loss(
            self._model,
            (
                *self._padded(
                    prompts, self.trained_on.max_prompt_tokens, self.tokenizer.pad_token_id
                ),
                labels,
            ),
        )
        return self.answers(prompts), float(lost.total), int(lost.count)


def answer(prompts: Sequence[str], options: AnswerOptions) -> None:
    """A line for each prompt on standard output."""
    model = Chat(options)
    for answers in in_pieces(prompts, model.answers, AT_ONCE, model.device):
        print(*answers, sep="\n", flush=True)


def chat(options: AnswerOptions) -> None:
    """A prompt a line, until the input ends. Each is answered by itself: the model was trained on
    single questions.
    """
    model, asks = Chat(options), sys.stdin.isatty()
    streamer: Any = TextStreamer(model.tokenizer, skip_prompt=True, skip_special_tokens=True)
    say("Ctrl-D ends.")
    while True:
        try:
            prompt = input("> " if asks else "").strip()
        except EOFError:
            return
        if prompt:
            list(in_pieces([prompt], lambda some: model.answers(some, streamer), 1, model.device))


def evaluate(data: DataOptions, options: AnswerOptions) -> None:
    """The loss over all tokens, and BLEU and chrF of whole responses, each with sacrebleu's
    signature, on standard output.
    """
    model, rows = Chat(options), list(read_rows(data.data, data))
    pieces = list(in_pieces(rows, model.scored, AT_ONCE, model.device))
    made = [answer for answers, _, _ in pieces for answer in answers]
    total, tokens = sum(lost for _, lost, _ in pieces), sum(count for _, _, count in pieces)
    print(
        f"loss {total / tokens:.4f} over {counted(len(rows), 'row')} and {counted(tokens, 'token')}"
    )
    for metric in (bleu(), CHRF()):
        score = metric.corpus_score(made, [[response for _, response in rows]])
        print(score.format(signature=metric.get_signature().format()))
