"""After the training: answers, a chat, and an evaluation by sacrebleu."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from sacrebleu.metrics.chrf import CHRF
from torch import nn
from transformers import TextStreamer

from brimful.errors import DoesNotFit, UsageError
from brimful.recipes.chatlm.data import pad
from brimful.recipes.chatlm.loss import IGNORED
from brimful.recipes.chatlm.model import ChatModel, chat_model
from brimful.recipes.chatlm.options import Answering, DataOptions, ModelOptions
from brimful.recipes.chatlm.recipe import FILE_NAME, Facts, bleu
from brimful.recipes.chatlm.rows import Rows
from brimful.recipes.chatlm.tokenizer import encode, fingerprint, load_tokenizer
from brimful.recipes.common import say
from brimful.recipes.facts import read_facts, trained_weights
from brimful.train.checkpoints.training_state import load_model
from brimful.train.distributed.ranks import device_for
from brimful.train.step.oom import Missing, attempt, free_what_is_cached
from brimful.units import counted


class Chat:
    """A trained model that answers."""

    def __init__(self, options: Answering) -> None:
        self._options = options
        self.device = device_for(options.device)
        self.facts, self.tokenizer, model = _loaded(options.checkpoint)
        self.model: Any = nn.Module.to(model, self.device).eval()  # Any: no type of Transformers that generates
        self.at_once: int | None = None  # that went through together after memory was missing

    def answers(self, prompts: Sequence[str], streamer: TextStreamer | None = None) -> list[str]:
        """One for each prompt, cut as in the training. Memory that is missing halves the batch, down to one prompt."""
        made: list[str] = []
        while len(made) < len(prompts):
            some = prompts[len(made) :][: self.at_once]
            got = attempt(lambda some=some: self._answers(some, streamer))
            if not isinstance(got, Missing):
                made += got
                continue
            free_what_is_cached(self.device)
            if len(some) == 1:
                raise DoesNotFit(
                    f"A single prompt does not fit into memory: {got.message}", suggestion="Lower --max-new-tokens."
                )
            self.at_once = len(some) // 2
            say(f"Out of memory ({got.pattern}): {self.at_once:,} in place of {len(some):,} prompts at once.")
        return made

    @torch.inference_mode()
    def _answers(self, prompts: Sequence[str], streamer: TextStreamer | None) -> list[str]:
        options = self._options
        draws = {"do_sample": True, "temperature": options.temperature, "top_p": options.top_p} if options.temperature else {}
        tokens, mask = pad(self.tokens(prompts, self.facts.max_prompt_tokens), self.tokenizer.pad_token_id)
        made = self.model.generate(
            input_ids=tokens.to(self.device),
            attention_mask=mask.to(self.device),
            max_new_tokens=options.max_new_tokens or self.facts.max_response_tokens,
            repetition_penalty=options.repetition_penalty,
            streamer=streamer,
            **(draws or {"do_sample": False}),
        )
        return [text.strip() for text in self.tokenizer.batch_decode(made.tolist(), skip_special_tokens=True)]

    def tokens(self, texts: Sequence[str], most: int) -> list[torch.Tensor]:
        end = self.tokenizer.eos_token_id
        return [torch.tensor([*tokens[: most - 1], end]) for tokens in encode(self.tokenizer, list(texts))]

    @torch.inference_mode()
    def summed_loss(self, prompts: Sequence[str], responses: Sequence[str]) -> tuple[float, int]:
        tokens, mask = pad(self.tokens(prompts, self.facts.max_prompt_tokens), self.tokenizer.pad_token_id)
        labels, _ = pad(self.tokens(responses, self.facts.max_response_tokens), IGNORED)
        total, count = self.model(*(one.to(self.device) for one in (tokens, mask, labels)))
        return float(total), int(count)


def _loaded(checkpoint: Path) -> tuple[Facts, Any, ChatModel]:
    if not checkpoint.exists():
        raise UsageError(
            f"There is no checkpoint at {checkpoint}.", suggestion="Give the --out of a training with --checkpoint."
        )
    out = next((one for one in (checkpoint, *checkpoint.absolute().parents)[:4] if (one / FILE_NAME).is_file()), None)
    facts = read_facts(checkpoint, FILE_NAME, Facts)
    if out is None or facts is None:
        raise UsageError(f"No {FILE_NAME} at or above {checkpoint}.", suggestion="Give the --out of a training of this recipe.")
    tokenizer = load_tokenizer(out / "tokenizer")
    if fingerprint(tokenizer) != facts.tokenizer or len(tokenizer) != facts.vocabulary:
        raise UsageError(
            f"The tokenizer in {out / 'tokenizer'} has {len(tokenizer):,} tokens and is not the one of the training, which had "
            f"{facts.vocabulary:,}.",
            "Its tokens mean nothing to the model.",
            "Put the folder back that the training wrote.",
        )
    model = chat_model(ModelOptions(facts.model), facts.vocabulary, tokenizer.pad_token_id, tokenizer.eos_token_id)
    load_model(model, trained_weights(checkpoint), str(checkpoint))
    return facts, tokenizer, model


def answer(prompts: Sequence[str], options: Answering) -> int:
    """A line for each prompt on standard output."""
    torch.manual_seed(options.seed)
    for text in Chat(options).answers(prompts):
        print(text, flush=True)
    return 0


def chat(options: Answering) -> int:
    """A prompt a line, until the input ends. Each is answered by itself: the model was trained on single questions."""
    torch.manual_seed(options.seed)
    one = Chat(options)
    asks = sys.stdin.isatty()
    say("Ctrl-D ends.")
    while True:
        try:
            prompt = input("> " if asks else "").strip()
        except EOFError:
            return 0
        if prompt:
            one.answers([prompt], TextStreamer(one.tokenizer, skip_prompt=True, skip_special_tokens=True))


@dataclass(frozen=True)
class Scores:
    """Of all rows. `loss` is the mean over the responses' tokens, cut as in the training; BLEU and chrF are of whole responses,
    0 to 100, with sacrebleu's signatures."""

    rows: int
    tokens: int
    loss: float
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str


def evaluate(data: DataOptions, options: Answering, batch_size: int, bleu_tokenizer: str, as_json: bool) -> int:
    """Scores on standard output."""
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}", "A prompt is answered at once at least.", "Give 1 or more.")
    torch.manual_seed(options.seed)
    by_ngrams, by_characters = bleu(bleu_tokenizer), CHRF()
    one, total, count = Chat(options), 0.0, 0
    made: list[str] = []
    responses: list[str] = []
    for some in _batches(Rows(data.data, data), batch_size):
        prompts, wanted = zip(*some, strict=True)
        made += one.answers(prompts)
        responses += wanted
        for start in range(0, len(some), one.at_once or len(some)):
            piece = slice(start, start + (one.at_once or len(some)))
            lost, tokens = one.summed_loss(prompts[piece], wanted[piece])
            total, count = total + lost, count + tokens
    scored = [metric.corpus_score(made, [responses]).score for metric in (by_ngrams, by_characters)]
    signatures = [str(metric.get_signature()) for metric in (by_ngrams, by_characters)]
    scores = Scores(len(made), count, total / count, scored[0], signatures[0], scored[1], signatures[1])
    if as_json:
        print(json.dumps(asdict(scores)))
    else:
        print(f"{counted(scores.rows, 'row')}, {counted(scores.tokens, 'token')}: loss {scores.loss:.4f}")
        print(f"BLEU {scores.bleu:.2f}  {scores.bleu_signature}\nchrF {scores.chrf:.2f}  {scores.chrf_signature}")
    return 0


def _batches(rows: Rows, size: int) -> Iterator[list[tuple[str, str]]]:
    left = iter(rows)
    while some := list(islice(left, size)):
        yield some
