"""A GPT-2 made from a configuration, trained by the Trainer of Transformers on texts of 16 to 400
words that its collator pads.
"""

from sequences import VOCABULARY, texts
from shared import Samples, flags
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)


def row(number, length):
    return {"input_ids": texts(number, length)[0].tolist()}


args = flags(2500)
set_seed(args.seed)
words = {"[PAD]": 0} | {f"word{number}": number for number in range(1, VOCABULARY)}
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel(words, unk_token="[PAD]")), pad_token="[PAD]"
)
config = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=400,
    n_embd=256,
    n_layer=4,
    n_head=4,
    bos_token_id=0,
    eos_token_id=0,
    use_cache=False,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=1,
        dataloader_drop_last=True,
        seed=args.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    train_dataset=Samples(args.samples, row, (16, 400)),
)
trainer.train()
