"""The metrics of a run, as Prometheus' own parser reads them."""

import re
from dataclasses import replace

import pytest

from brimful.errors import UsageError
from brimful.show.prometheus import export, prometheus_text
from brimful.values import Heartbeat, HostStatus, State, Status
from tests.brimful.measure.nvml import GIB
from tests.brimful.show.test_monitor_sections import cards

STATUS = Status(
    unix_s=1.0,
    of='a "run"\\\n',
    state=State.GOING,
    beat=Heartbeat("train", 20, 5.0, loss=float("nan"), samples_per_s=8.5),
    cards=cards(),
    host=HostStatus(16 * GIB, 9 * GIB, None, 8, 3),
)
# of one line, by "Exposition formats": name, labels, value
SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*",?)*)\} (\S+)'
)


def parsed(text: str) -> dict[str, dict[str, float]]:
    """By metric, then labels; each metric in one piece behind its type."""
    metrics: dict[str, dict[str, float]] = {}
    assert text.endswith("\n")
    for row in text.splitlines():
        if row.startswith("# TYPE "):
            name, kind = row.removeprefix("# TYPE ").split()
            assert kind == "gauge" and name not in metrics
            metrics[name] = {}
        else:
            match = SAMPLE.fullmatch(row)
            assert match and match[1] == list(metrics)[-1], row
            assert match[2] not in metrics[match[1]]
            metrics[match[1]][match[2]] = float(match[3])
    return metrics


def test_every_number_is_a_metric_and_a_list_has_a_label():
    metrics = parsed(prometheus_text(STATUS))
    of = r'of="a \"run\"\\\n"'
    values = {"beat_steps": 20, "beat_samples_per_s": 8.5, "going": 1, "host_free_bytes": 9 * GIB}
    assert {name: metrics[f"brimful_{name}"] for name in values} == {
        name: {of: value} for name, value in values.items()
    }
    assert metrics["brimful_cards_used_bytes"][f'{of},cards="3"'] == 34 * GIB
    assert len(metrics["brimful_cards_used_bytes"]) == 8
    assert metrics["brimful_cards_processes_bytes"][f'{of},cards="2",processes="0"'] == 18 * GIB
    assert not any("cgroup" in name for name in metrics), "what is not known is left out"


def test_prometheus_own_parser_takes_it():
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(prometheus_text(STATUS)))
    sample = {family.name: family for family in families}["brimful_beat_steps"].samples[0]
    assert (sample.labels, sample.value) == ({"of": STATUS.of}, 20)


def test_the_file_is_replaced_in_one_piece_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "brimful.prom"
    export(STATUS, path)
    export(replace(STATUS, state=State.ENDED), path)
    assert parsed(path.read_text())["brimful_going"].popitem()[1] == 0
    assert [child.name for child in tmp_path.iterdir()] == ["brimful.prom"]
    with pytest.raises(UsageError, match="could not be written"):
        export(STATUS, tmp_path / "not" / "there.prom")
