"""Files of safetensors whose zeros take no room: what is read from them is what was saved."""

import functools
import os

import pytest
import torch

safetensors = pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402

from brimful_inside.probe.sandbox.native_files import CHUNK, with_holes  # noqa: E402


@pytest.fixture(autouse=True)
def holes(monkeypatch):
    whole = functools.partial(with_holes, safetensors.serialize_file)
    monkeypatch.setattr("safetensors.torch.serialize_file", whole)


def test_what_was_saved_is_read_again(tmp_path):
    large = torch.zeros(3 * CHUNK, dtype=torch.uint8)
    large[CHUNK + 5] = 7
    tensors = {
        "large": large,
        "names ü": torch.randn(3, 5),
        "half": torch.randn(7).bfloat16(),
        "one": torch.tensor(3),
        "none": torch.zeros(0, 4),
        "flags": torch.tensor([True, False, True]),
    }
    save_file(tensors, tmp_path / "all", metadata={"format": "pt"})
    torch.testing.assert_close(load_file(tmp_path / "all"), tensors, rtol=0, atol=0)
    with safetensors.safe_open(tmp_path / "all", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_zeros_take_no_room_and_all_else_does(tmp_path):
    def room(name, tensor):
        save_file({"one": tensor}, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 32 * CHUNK
        return os.stat(tmp_path / name).st_blocks * 512

    assert room("zeros", torch.zeros(8 * CHUNK)) < CHUNK
    assert room("ones", torch.ones(8 * CHUNK)) >= 32 * CHUNK


def test_bytes_of_earlier_releases_are_written_alike_and_an_unknown_type_is_left_to_the_library(
    tmp_path,
):
    left = []
    write = functools.partial(with_holes, lambda *args: left.append(args))
    write({"a": {"dtype": "float16", "shape": [2], "data": b"\0\x3c\0\0"}}, tmp_path / "old")
    old = {"a": torch.tensor([1.0, 0.0]).half()}
    torch.testing.assert_close(load_file(tmp_path / "old"), old, rtol=0, atol=0)
    assert not left
    write({"a": {"dtype": "float8_x", "shape": [1], "data": b"\0"}}, tmp_path / "new")
    assert len(left) == 1 and not (tmp_path / "new").exists()
    one = {"a": {"dtype": "float16", "shape": [1], "data": b"\0\0"}}
    write(one, tmp_path / "metadata", {"step": 3})
    write(one, tmp_path / "nowhere" / "file")
    assert len(left) == 3 and not (tmp_path / "metadata").exists(), (
        "what the library refuses, it refuses itself"
    )
