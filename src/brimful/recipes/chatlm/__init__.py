"""A Chinese chat model: an encoder-decoder T5, fine-tuned on prompts and responses (as ChatLM-mini-Chinese is).

    python -m brimful.recipes.chatlm --data FILE.jsonl
    torchrun --nproc-per-node 2 -m brimful.recipes.chatlm --data FILE.parquet --batch-size 64
    python -m brimful.recipes.chatlm chat --checkpoint out/chatlm

`recipe.py` is the training, from top to bottom; `data.py` and `tokenizer.py` come before it, `model.py` and `loss.py` in it,
`generation.py` after it. Importing this package imports no torch.
"""

from __future__ import annotations
