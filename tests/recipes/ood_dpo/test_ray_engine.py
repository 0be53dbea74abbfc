"""A sweep on a cluster of two nodes, one of which dies in the middle of it."""

import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray
from ray.cluster_utils import Cluster

from brimful_train.config import BatchingConfig, CheckpointConfig, Config
from recipes.ood_dpo import ray_engine
from recipes.ood_dpo.experiments import Results
from recipes.ood_dpo.runs import Bench, Settings
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions, HeadOptions, SweepOptions
from tests.recipes.ood_dpo.conftest import molecules, write_csv


@pytest.mark.heavy
def test_the_tasks_of_a_node_that_dies_start_on_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = write_csv(
        tmp_path / "made.csv",
        ["smiles", "label"],
        [[one, n % 2] for n, one in enumerate(molecules(120))],
    )
    settings = Settings(
        SweepOptions(seeds=6, engine="ray"),
        DatasetOptions(dataset=str(file), domain="scaffold"),
        EncoderOptions(encoder="morgan", cache=tmp_path / "cache"),
        HeadOptions(),
        Config(
            out=tmp_path / "out",
            device="cpu",
            epochs=2,
            batch=BatchingConfig(micro_batch=32),
            checkpoints=CheckpointConfig(every_epochs=None),
        ),
    )
    resources = {"num_cpus": 1, "max_retries": 10, "memory": 200 * 2**20}
    monkeypatch.setattr(ray_engine, "task_resources", lambda *_: resources)
    bench = Bench(settings)
    plan = bench.plan()
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        other = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        written: list[str] = []
        write = Results.write
        monkeypatch.setattr(
            Results,
            "write",
            lambda self, result: (written.append(result.engine), write(self, result)),
        )

        def kill() -> None:
            until = time.monotonic() + 120
            while not written and time.monotonic() < until:
                time.sleep(0.05)
            cluster.remove_node(other, allow_graceful=False)

        killer = threading.Thread(target=kill)
        killer.start()
        ray_engine.run(plan, bench, ())
        killer.join()
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert bench.results.left(plan) == [] and len(written) == len(plan) == 12
