import importlib

import pytest

from bench import harness

BENCHES = sorted(
    path.stem
    for path in (harness.ROOT / "bench").glob("*.py")
    if "harness.run(main)" in path.read_text()
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_says_what_it_does(name, capsys):
    pytest.importorskip("transformers")
    main = importlib.import_module(f"bench.{name}").main
    with pytest.raises(SystemExit, match=r"^0$"):
        harness.run(main, ["--help"])
    assert "usage:" in capsys.readouterr().out
