"""The plugin that puts our names in TorchRL's places, in a child run of pytest."""

from importlib.util import find_spec
from textwrap import dedent

import pytest

from peers.runs import run, write

pytest.importorskip("torchrl")

TESTS = """
    import subprocess
    import sys

    import gymnasium
    import torch
    import swath
    from tensordict import TensorDict
    from torchrl.collectors import (
        AsyncCollector, BaseCollector, Collector, Evaluator, MultiSyncCollector, VanillaWeightUpdater
    )
    from torchrl.collectors.distributed import RayCollector, RayEvalWorker, RPCCollector
    from torchrl.collectors.utils import split_trajectories
    from torchrl.collectors.distributed.ray_eval_worker import RayEvalWorker as TheSameWorker
    from torchrl.collectors.collectors import aSyncDataCollector, MultiaSyncDataCollector, SyncDataCollector
    from torchrl.data import MultiStep, RayReplayBuffer
    from torchrl.data.postprocs.postprocs import MultiStep as TheSame
    from torchrl.weight_update import SharedMemWeightSyncScheme

    CODE = '''
    from torchrl.collectors import Collector
    from torchrl.collectors.distributed.ray import RayCollector
    print(Collector.__module__, RayCollector.__module__)
    '''

    class Left(torch.nn.Module):
        def forward(self, observation):
            return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    def batch():
        return TensorDict({"next": {"done": torch.tensor([[False], [True], [False]]), "reward": torch.ones(3, 1),
                                    "observation": torch.zeros(3, 1)}}, 3)

    def test_names():
        assert MultiStep is TheSame is swath.MultiStep
        assert Collector is swath.Collector
        assert issubclass(Collector, BaseCollector)
        assert BaseCollector is swath.BaseCollector
        assert MultiSyncCollector is swath.MultiSyncCollector
        assert RayCollector is swath.RayCollector
        assert RayReplayBuffer.__module__.startswith("torchrl.")
        assert SharedMemWeightSyncScheme is swath.SharedMemWeightSyncScheme
        assert VanillaWeightUpdater is swath.VanillaWeightUpdater
        assert Evaluator is swath.Evaluator
        assert RayEvalWorker is TheSameWorker is swath.RayEvalWorker
        assert (SyncDataCollector, MultiaSyncDataCollector) == (swath.Collector, swath.MultiAsyncCollector)
        assert aSyncDataCollector is AsyncCollector
        assert issubclass(AsyncCollector, swath.MultiAsyncCollector)
        assert RPCCollector.__module__.startswith("torchrl.")

    def test_uses():
        assert split_trajectories(batch()).shape == (2, 2)
        assert split_trajectories(batch()).shape == (2, 2)
        MultiStep(0.9, 2)(batch())
        with Collector("CartPole-v1", frames_per_batch=4, total_frames=4) as collector:
            assert len(list(collector)) == 1

    def test_spawned_processes_get_ours_too():
        module = subprocess.check_output([sys.executable, "-c", CODE], text=True)
        assert module.split() == ["swath.collectors.collector", "swath.collectors.ray_collector"]

    def test_one_worker_in_a_process_of_its_own():
        env = {"id": "CartPole-v1"}
        options = {"frames_per_batch": 4, "total_frames": 8}
        with AsyncCollector(gymnasium.make, Left(), create_env_kwargs=env, **options) as collector:
            assert [batch.shape for batch in collector] == [(4,), (4,)]
"""


CONFTEST = """
    import pytest
    from torchrl.collectors import Collector

    @pytest.fixture
    def seen_by_conftest():
        return Collector
"""

MORE = """
    def test_conftest(seen_by_conftest):
        assert seen_by_conftest is swath.Collector
"""

ON_RAY = """
    def test_actor():
        import ray

        @ray.remote
        class Actor:
            def module(self):
                from torchrl.collectors import Collector

                return Collector.__module__

        ray.init("local", num_cpus=1, include_dashboard=False)
        assert ray.get(Actor.remote().module.remote()) == "swath.collectors.collector"
        ray.shutdown()
"""

# In a separate process: our names must be there before a test module is imported, and be gone afterwards.
RUN = """
import sys, pytest, torchrl.collectors
status = pytest.main(["-p", "peers.torchrl_shim", "-p", "no:cacheprovider", "--rootdir", *sys.argv[1:]])
print("put back:", torchrl.collectors.Collector.__module__.startswith("torchrl."))
sys.exit(status)
"""


def test_tests_conftests_processes_and_actors_that_import_from_torchrl_get_ours_until_the_run_is_over(tmp_path):
    write(tmp_path / "conftest.py", CONFTEST)
    parts = (TESTS, MORE, ON_RAY) if find_spec("ray") else (TESTS, MORE)
    (tmp_path / "test_written_for_torchrl.py").write_text("".join(map(dedent, parts)))
    report = run(tmp_path, "-c", RUN, tmp_path, tmp_path)
    assert f"score: {len(parts) + 3} passed, 0 failed, 0 left out" in report
    assert "put back: True" in report
