import json

import pytest

from bench import llm_rows

COLUMNS = (
    "source,gpu,cards,model,method,precision,batch_per_card,sequence,attention,checkpointing",
    "allocated_bytes,reserved_bytes,device_mib,step_s,note",
)
ROWS = (
    "fms-acceleration,a100-80gb,2,mistralai/Mistral-7B-v0.1,lora,bf16 "
    'weights,2,4096,flash,yes,1073741824,,2048,2.5,"a, b"',
    "torch-preflight,t4,1,bert-base-uncased,full,fp16 autocast,8,256,as the library "
    "chooses,no,2000,4000,,,",
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "own.csv").write_text(",".join(COLUMNS) + "\n")
    monkeypatch.setattr(llm_rows, "PUBLIC", tmp_path / "own.csv")
    (tmp_path / llm_rows.CSV).write_text("\n".join((",".join(COLUMNS), *ROWS)) + "\n")
    return tmp_path


def line(measured: dict, predicted: dict) -> dict:
    return {
        "name": "a row",
        "kind": "a kind",
        "measured": dict.fromkeys(llm_rows.FIGURES) | measured,
        "predicted": predicted,
        "note": "",
    }


def test_a_row_becomes_the_command_of_its_source_without_a_flag_for_the_batch_size(folder):
    first, second = llm_rows.read_rows(folder)
    of, other = (json.loads(llm_rows.command_of(row)[-1]) for row in (first, second))
    assert of == {
        "recipe": "trainer",
        "model": "mistralai/Mistral-7B-v0.1",
        "method": "lora",
        "attention": "flash",
        "batch": 2,
        "length": 4096,
    }
    assert other["attention"] is None
    assert llm_rows.name_of(first).endswith("2 x a100-80gb, 2 x 4096")


def test_what_a_source_does_not_say_is_none_and_bytes_are_bytes(folder):
    first, second = map(llm_rows.measured, llm_rows.read_rows(folder))
    assert first == {"allocated": 1 << 30, "reserved": None, "device": 2 << 30, "step": 2.5}
    assert second == {"allocated": 2000, "reserved": 4000, "device": None, "step": None}


def test_rows_are_chosen_by_words_of_their_names_and_none_at_all_is_said(folder):
    assert [row["gpu"] for row in llm_rows.read_rows(folder, ["bert"])] == ["t4"]
    for place, words, why in (
        (folder, ["gpt"], "None of the 2 rows"),
        (folder / "elsewhere", [], "give the folder"),
    ):
        with pytest.raises(SystemExit, match=why):
            llm_rows.read_rows(place, words)


def test_errors_are_of_the_rows_that_have_both_numbers_and_an_interval_that_misses_is_counted():
    lines = [
        line(
            {"device": 100.0, "allocated": 50.0},
            {"device": 110.0, "allocated": 50.0, "device_interval": [90, 120]},
        ),
        line(
            {"device": 200.0}, {"device": 190.0, "allocated": 80.0, "device_interval": [180, 195]}
        ),
        line({"allocated": 10.0}, {"failed": ["no such model"]}),
    ]
    assert llm_rows.errors(lines, "device") == pytest.approx([0.1, -0.05])
    figures = llm_rows.summary(lines)
    assert figures["allocated"] == {"rows": 1, "median": 0.0, "p95": 0.0, "inside_interval": None}
    assert figures["device"]["rows"] == 2 and figures["device"]["inside_interval"] == 0.5
    assert "step" not in figures


def test_rows_of_quantized_models_need_no_folder_and_are_left_out_without_bitsandbytes(
    monkeypatch, capsys
):
    rows = llm_rows.read_rows(None)
    assert [row["batch_per_card"] for row in rows] == ["1", "2", "4", "8", "12"]
    assert {json.loads(llm_rows.command_of(row)[-1])["recipe"] for row in rows} == {"quantized"}
    assert "QLoRA" in llm_rows.kind_of(rows[0])
    monkeypatch.setattr(llm_rows, "find_spec", lambda name: None)
    assert llm_rows.runnable(rows) == []
    assert (
        "5 rows are left out: TinyLlama, QLoRA (nf4). They need bitsandbytes"
        in capsys.readouterr().out
    )
    monkeypatch.setattr(llm_rows, "find_spec", lambda name: name)
    assert llm_rows.runnable(rows) == rows


@pytest.mark.heavy
def test_a_row_is_predicted_without_a_weight_being_downloaded(folder):
    pytest.importorskip("peft")
    row = {
        "source": "fitcheck",
        "gpu": "t4",
        "cards": "1",
        "model": "SmolLM2-135M",
        "method": "lora",
        "attention": "eager",
    }
    answer = llm_rows.predicted(row | {"batch_per_card": "1", "sequence": "64"})
    assert answer["verdict"] == "fits"
    assert answer["allocated"] > 2 * 134_000_000, "the base model's weights in fp16 at least"
    assert answer["device"] - answer["reserved"] == answer["context_bytes"]
    assert answer["step_interval"][0] < answer["step"] < answer["step_interval"][1]
