"""Which setting a name means: of a flag or a key of a command, of a file of settings, of a script's
own text. The one dictionary of names.
"""

from __future__ import annotations

import functools
import re
from typing import Dict, FrozenSet, Optional

# How well a name fits a setting: it mentions it; it may mean it, or another one of its kind; it
# means it; it means that of one pass, of which a global batch is made.
MENTIONS, MAY_MEAN, MEANS, MEANS_OF_ONE_PASS = 1, 2, 3, 4

BATCH_SIZE = "batch_size"


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


# Accumulation: names of Transformers, Lightning, fairseq (ConvNeXt as well), MAE and open_clip, and
# of scripts that write their own loop.
_NAMES: Dict[str, FrozenSet[str]] = {
    "num_workers": _words("num_workers workers n_workers dataloader_num_workers"),
    "prefetch_factor": _words("prefetch_factor prefetch"),
    "accumulation": _words(
        "gradient_accumulation_steps gradient_accumulation gradient_accum_steps accum_steps"
        " accumulation_steps accumulation accumulate_grad_batches accumulate accum_iter accum_freq"
        " accum grad_accum_steps grad_accum update_freq"
    ),
    "lr": _words("lr learning_rate"),
}
_MENTIONED = {
    "num_workers": r"worker",
    "prefetch_factor": r"prefetch",
    "accumulation": r"accum",
    "lr": r"^(base|init|initial|peak|train)_(lr|learning_rate)$",
}
# Where a training ends, and the samples of a whole update, from which a script computes how many
# batches go into one.
_PATTERNS = {
    "steps": r"((max|num|total|train)_){1,2}(training_)?(steps|iters|iterations|updates)",
    "epochs": r"((max|num|n|total|train)_){0,2}epochs",
    "samples_of_an_update": r"(global|total|effective)_(train_)?batch_?size",
}
# A batch size is known by the words of its name: --train-bs, --batchSize, --windows_batch_size.
_SIZES = _words("bs bsz bsize batchsize mbs mbsz minibatch microbatch")
_OF_ONE_PASS = _words("micro device gpu microbatch mbs mbsz")
_OF_TRAINING = _words("batch size train training mini per") | _SIZES | _OF_ONE_PASS
_OF_AN_UPDATE = _words("global total effective n")
_OF_NO_BATCH = _words("num no auto find scale warmup log")
# What is of an evaluation, or a limit, counts or names: what caps a number does not ask for it.
_OTHERS = _words(
    "eval evaluation val valid validation dev test testing pred predict prediction infer inference"
    " gen generation rollout sample sampling decode max maximum min minimum limit cap floor ceil"
    " least most bound upper lower norm idx index loss count"
)


@functools.cache
def plain(name: str) -> str:
    """ "batch_size" of --batchSize, +train.batch-size, BATCH_SIZE."""
    last = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.lstrip("+-").split(".")[-1])
    return last.replace("-", "_").lower()


@functools.cache
def fit(setting: str, name: str) -> int:
    """How well a name fits; 0: not at all. A setting that is not in this dictionary has one name,
    its own."""
    name = plain(name)
    if setting in _PATTERNS:
        return MEANS * bool(re.fullmatch(_PATTERNS[setting], name))
    words = set(name.split("_"))
    if setting != BATCH_SIZE:
        if name in _NAMES.get(setting, {setting}):
            return MEANS
        return int(not words & _OTHERS and bool(re.search(_MENTIONED.get(setting, "^$"), name)))
    is_size = bool(words & _SIZES) or {"batch", "size"} <= words
    if not (is_size or "batch" in words) or words & (_OTHERS | _OF_NO_BATCH):
        return 0
    if words & _OF_AN_UPDATE or not (is_size or words <= _OF_TRAINING):
        return MENTIONS
    if not (is_size and words <= _OF_TRAINING):
        return MAY_MEAN
    return MEANS_OF_ONE_PASS if words & _OF_ONE_PASS else MEANS


def setting_of(name: str) -> Optional[str]:
    """The setting that a name of a script asks for."""
    best = max((BATCH_SIZE, *_NAMES), key=lambda setting: fit(setting, name))
    return best if fit(best, name) else None


def is_of_another(name: str) -> bool:
    """Whether it names a limit, a count or an evaluation."""
    return bool(_OTHERS & set(plain(name).split("_")))
