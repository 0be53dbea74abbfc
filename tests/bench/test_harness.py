import importlib
from pathlib import Path
from typing import Annotated, Literal

import pytest

from bench import harness

BENCHES = sorted(
    path.stem
    for path in (harness.ROOT / "bench").glob("*.py")
    if "harness.run(main)" in path.read_text()
)


def test_a_signature_is_a_command_line():
    calls = []

    def main(
        data: Path,
        *,
        names: Annotated[list[str] | None, "some"] = None,
        kind: Literal["a", "b"] | None = None,
        times: int = 3,
        is_quick: bool = False,
    ) -> None:
        calls.append((data, names, kind, times, is_quick))

    harness.run(main, ["here"])
    names = ["--names", "x", "y", "--names", "z"]
    harness.run(main, ["here", *names, "--kind", "b", "--times", "5", "--is-quick"])
    assert calls == [
        (Path("here"), None, None, 3, False),
        (Path("here"), ["x", "y", "z"], "b", 5, True),
    ]
    with pytest.raises(SystemExit):
        harness.run(main, ["here", "--kind", "c"])


def test_raw_rows_lie_compressed_beside_the_figures(tmp_path):
    path = harness.keep("clock", {"a": 1}, tmp_path, of="a-card", rows=[{"b": 2}])
    assert path.name.startswith("clock-a-card-") and harness.read_rows(path) == [{"b": 2}]


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_says_what_it_does(name, capsys):
    pytest.importorskip("transformers")
    main = importlib.import_module(f"bench.{name}").main
    with pytest.raises(SystemExit, match=r"^0$"):
        harness.run(main, ["--help"])
    assert "usage:" in capsys.readouterr().out
