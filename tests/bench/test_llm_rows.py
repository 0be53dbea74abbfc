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
