"""Files become rows, and what is wrong with one is a sentence."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from brimful.errors import UsageError
from recipes.chatlm.rows import digest, read_rows
from recipes.chatlm.settings import DataOptions

ROWS = [
    {"prompt": "你好", "response": "您好！"},
    {"prompt": "", "response": "空"},
    {"prompt": "a\nb", "response": ""},
]
PAIRS = [(row["prompt"], row["response"]) for row in ROWS]


def write(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    else:
        path.write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
        )
    return path


def read(path: Path, **options: Any) -> list[tuple[str, str]]:
    return list(read_rows([path], DataOptions(**options)))


def refused(path: Path, **options: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(path, **options)
    return caught.value


KINDS = pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.json"])


@KINDS
@pytest.mark.parametrize(
    ("rows", "options", "pairs"),
    [
        pytest.param(ROWS, {}, PAIRS, id="prompts and responses"),
        pytest.param(
            [
                {"instruction": "译", "input": "cat", "output": "猫"},
                {"instruction": "写", "input": "", "output": "诗"},
                {"instruction": "问", "input": None, "output": "答"},
            ],
            {},
            [("译\ncat", "猫"), ("写", "诗"), ("问", "答")],
            id="instructions followed by their inputs",
        ),
        pytest.param(
            [{"id": 1, "question": "q", "answer": "a"}],
            {"prompt_column": "question", "response_column": "answer"},
            [("q", "a")],
            id="other columns by name",
        ),
    ],
)
def test_each_kind_of_file_gives_its_rows_in_order(
    tmp_path: Path, name: str, rows: list[Any], options: dict, pairs: list[tuple[str, str]]
):
    assert read(write(tmp_path / name, rows), **options) == pairs


@KINDS
def test_a_missing_column_names_those_there_are(tmp_path: Path, name: str):
    error = refused(write(tmp_path / name, [{"question": "q", "answer": "a"}]))
    assert (
        "row 1: it has no column prompt or instruction; there are question, answer"
        in error.problem.replace("line", "row")
    )
    assert "--prompt-column" in error.suggestion
    assert (
        "no column text"
        in refused(tmp_path / name, prompt_column="text", response_column="answer").problem
    )


@KINDS
@pytest.mark.parametrize(("value", "words"), [(None, "null"), (7, "int '7'"), (["a"], "list")])
def test_a_row_that_is_not_text_is_named(tmp_path: Path, name: str, value: Any, words: str):
    path = write(tmp_path / name, [{"prompt": "p", "response": value}])
    problem = refused(path).problem
    assert (
        f"{path}, " in problem and "response is" in problem and words in problem and "1" in problem
    )


@KINDS
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str):
    path = write(tmp_path / name, [])
    assert "no rows" in refused(path).problem
    path.write_bytes(b"")
    assert "no rows" in refused(path).problem or "parquet" in refused(path).problem


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "\xe4\xbd", "response": ""}', "no UTF-8"),
        (b'{"prompt": ', "no JSON"),
        (b'"text"', "no object"),
        (b'{"prompt": "\\ud800", "response": ""}', "surrogate"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, words: str):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "p", "response": "r"}\n\n' + line + b"\n")
    problem = refused(path).problem
    assert f"{path}, line 3: " in problem and words in problem


@pytest.mark.parametrize("damage", [b"\xff", b"}"])
def test_a_damaged_array_names_the_row_before(tmp_path: Path, damage: bytes):
    path = tmp_path / "rows.json"
    path.write_bytes(
        b'[{"prompt": "p", "response": "r"}, {"prompt": "' + damage + b'", "response": 1}}'
    )
    assert "row 1" in refused(path).problem or "row 2" in refused(path).problem


def test_invalid_utf8_in_parquet_is_named_by_its_row(tmp_path: Path):
    texts = pyarrow.array([b"ok", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    path = tmp_path / "rows.parquet"
    parquet.write_table(
        pyarrow.table({"prompt": texts, "response": pyarrow.array(["a", "b"])}), path
    )
    assert "row 2: prompt: byte 1 is no UTF-8" in refused(path).problem


def test_a_byte_order_mark_and_lines_under_the_name_json_are_read(tmp_path: Path):
    path = tmp_path / "rows.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode() + b"\r\n")
    assert read(path) == PAIRS[:1]
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS).encode())
    assert read(path) == PAIRS


def test_what_is_no_data_file_is_refused(tmp_path: Path):
    (tmp_path / "rows.csv").write_text("prompt,response\n")
    for path in (tmp_path / "rows.csv", tmp_path / "none.jsonl", tmp_path):
        assert str(path) in refused(path).problem
    with pytest.raises(UsageError, match="--data is missing"):
        list(read_rows([], DataOptions()))


def test_the_digest_is_of_the_content_and_not_of_the_name(tmp_path: Path):
    one, other = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.jsonl", ROWS)
    assert digest([one]) == digest([other]) != digest([one], "more")
    with other.open("ab") as file:
        file.write(b" ")
    assert digest([one]) != digest([other])
