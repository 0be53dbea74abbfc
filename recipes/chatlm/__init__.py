"""A Chinese chat model: an encoder-decoder T5, fine-tuned on prompts and responses (as
ChatLM-mini-Chinese is).

    python -m recipes.chatlm --data FILE.jsonl
    torchrun --nproc-per-node 2 -m recipes.chatlm --data FILE.parquet --batch-size 64
    python -m recipes.chatlm chat --checkpoint out/chatlm

In the order of reading: settings, rows, data, loss, model, recipe, generation. Importing this
package imports no torch.
"""
