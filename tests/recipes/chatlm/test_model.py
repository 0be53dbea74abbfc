from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import T5ForConditionalGeneration

from brimful.errors import UsageError
from recipes.chatlm.model import SIZES, ChatModel, chat_model
from recipes.chatlm.settings import ModelOptions

PADDING, END = 0, 1


def tiny(vocabulary: int = 50, **options) -> ChatModel:
    torch.manual_seed(0)
    return chat_model(
        ModelOptions(**{"model": "tiny", "dropout": 0.0, **options}), vocabulary, PADDING, END
    )


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    prompts = torch.tensor([[5, 6, 7, END], [8, END, PADDING, PADDING]])
    return prompts, (prompts != PADDING).long(), torch.tensor([[9, 10, END], [11, END, -100]])


def test_the_large_one_has_its_parameters():
    with torch.device("meta"):
        model = chat_model(ModelOptions(), 29_298, PADDING, END)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == 187.7


@pytest.mark.parametrize("chunk", [0, 2, 1024])
def test_its_loss_is_that_of_transformers(chunk: int):
    model = tiny(loss_chunk=chunk)
    prompts, mask, labels = batch()
    total, count = model(prompts, mask, labels)
    theirs = T5ForConditionalGeneration.forward(
        model, input_ids=prompts, attention_mask=mask, labels=labels
    )
    assert count == 5 and (total / count).item() == pytest.approx(theirs.loss.item(), rel=1e-5)
    (total / count).backward()
    ours = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    theirs.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-5)


def test_padding_changes_neither_the_loss_nor_the_answer():
    model = tiny().eval()
    prompts, mask, labels = batch()
    together = model(prompts, mask, labels)[0].item()
    alone = (
        model(prompts[:1], mask[:1], labels[:1])[0].item()
        + model(prompts[1:, :2], mask[1:, :2], labels[1:, :2])[0].item()
    )
    assert together == pytest.approx(alone, rel=1e-5)
    made = model.generate(input_ids=prompts, attention_mask=mask, max_new_tokens=5, do_sample=False)
    short = model.generate(
        input_ids=prompts[1:, :2], attention_mask=mask[1:, :2], max_new_tokens=5, do_sample=False
    )
    assert made[1, : short.shape[1]].tolist() == short[0].tolist()


def test_a_frozen_encoder_and_embedding_stay_and_the_decoder_learns():
    model = tiny(freeze="encoder")
    model(*batch())[0].backward()
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert "shared.weight" in frozen and any(name.startswith("encoder.") for name in frozen)
    assert not any(name.startswith("decoder.") for name in frozen)
    assert all((p.grad is None) == (name in frozen) for name, p in model.named_parameters())


def other(vocabulary: int = 50, model: str = "tiny") -> ChatModel:
    torch.manual_seed(7)
    return chat_model(ModelOptions(model), vocabulary, PADDING, END)


@pytest.mark.parametrize("kind", ["file", "folder", "several files"])
def test_pretrained_weights_are_taken(tmp_path: Path, kind: str):
    pretrained, path = other(), tmp_path
    own = pretrained.state_dict()
    if kind == "file":
        path = tmp_path / "weights.safetensors"
        tied = ("embed_tokens", "lm_head.weight")
        save_file({n: one for n, one in own.items() if not any(t in n for t in tied)}, path)
    else:
        pretrained.save_pretrained(path, max_shard_size="1MB" if kind == "several files" else "1GB")
    model = tiny(init=path)
    assert all(torch.equal(one, own[name]) for name, one in model.state_dict().items())
    assert model.lm_head.weight is model.shared.weight


def test_weights_of_another_vocabulary_are_refused_with_both_sizes(tmp_path: Path):
    other(60).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="vocabulary of 60 tokens, and the tokenizer has 50"):
        tiny(init=tmp_path)


def test_weights_of_another_network_are_refused_by_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(SIZES, "chatlm-0.2b", {**SIZES["tiny"], "d_ff": 256, "num_layers": 3})
    other(model="chatlm-0.2b").save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=r"of another network: .*encoder.block.2") as caught:
        tiny(init=tmp_path)
    assert "--model" in caught.value.suggestion


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_what_holds_no_weights_is_named(tmp_path: Path, content: bytes | None):
    path = tmp_path / "weights.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="no weights can be read"):
        tiny(init=path)
