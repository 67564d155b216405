"""The plugin that puts our names in RLlib's places, in a child run of pytest."""

import pytest

from peers.runs import run, write

pytest.importorskip("ray")

TESTS = """
    import subprocess
    import sys

    import cloudpickle
    import gymnasium as gym
    import numpy as np
    import pytest
    import ray.rllib.algorithms.ppo as ppo
    import swath
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
    from ray.rllib.algorithms.callbacks import DefaultCallbacks, make_multi_callbacks
    from ray.rllib.env.env_runner_group import EnvRunnerGroup
    from ray.rllib.env.multi_agent_env import MultiAgentEnv, MultiAgentEnvWrapper
    from ray.rllib.env.tests.toys import Toy
    from ray.rllib.evaluation.postprocessing import discount_cumsum
    from ray.rllib.evaluation.rollout_worker import RolloutWorker
    from ray.rllib.evaluation.worker_set import WorkerSet
    from ray.rllib.examples.env.debug_counter_env import DebugCounterEnv
    from ray.rllib.examples.env.mock_env import MockEnv
    from ray.rllib.examples.env.multi_agent import Settable
    from ray.rllib.examples.envs.classes.mock_env import MockEnv as TheSame
    from ray.rllib.examples.policy.random_policy import RandomPolicy
    from ray.rllib.models.tf.tf_modelv2 import TFModelV2
    from ray.rllib.policy.sample_batch import SampleBatch
    from ray.rllib.utils.annotations import override
    from ray.rllib.utils.filter import MeanStdFilter
    from ray.rllib.utils.test_utils import check
    from ray.tune.registry import register_env

    class Own(RandomPolicy):
        @override(RandomPolicy)
        def compute_actions(self, obs_batch, *_, **__):
            return np.ones(len(obs_batch), int), [], {}

    class Model(TFModelV2):
        pass

    def test_names():
        assert AlgorithmConfig is swath.AlgorithmConfig
        assert EnvRunnerGroup is WorkerSet is swath.WorkerSet
        assert RolloutWorker is swath.RolloutWorker
        assert SampleBatch is swath.SampleBatch
        assert (MockEnv.__name__, MockEnv(3).episode_length) == (TheSame.__name__, 3)
        assert ppo.PPOTorchPolicy is swath.rollout_workers.PPOTorchPolicy

    def test_uses():
        assert discount_cumsum(np.ones(2), 0.5).tolist() == [1.5, 1.0]
        config = AlgorithmConfig().env_runners(rollout_fragment_length=4)
        with RolloutWorker(env_creator=lambda _: MockEnv(3), default_policy_class=Own, config=config) as worker:
            check(worker.sample()["actions"], [1, 1, 1, 1])

    def test_an_algorithm_has_workers():
        register_env("three", lambda _: MockEnv(3))
        config = ppo.PPOConfig().environment("three").env_runners(num_env_runners=0)
        config.callbacks(make_multi_callbacks([DefaultCallbacks])).training(train_batch_size=20)
        algo = config.build()
        result = algo.train()
        assert (result["num_env_steps_sampled_lifetime"], algo.get_policy().global_timestep) == (20, 20)
        assert result["env_runners"]["episode_return_mean"] == 3
        algo.stop()

    def test_envs_of_examples_and_other_tests():
        assert issubclass(DebugCounterEnv, gym.Env)
        assert issubclass(Toy, MultiAgentEnv)
        assert MultiAgentEnv is swath.rollout_workers.MultiAgentEnv
        assert Settable().num_agents == 3

    def test_other_processes_get_classes_whole():
        code = "import cloudpickle, sys; print([each.__name__ for each in cloudpickle.load(sys.stdin.buffer)])"
        told = subprocess.run([sys.executable, "-c", code], input=cloudpickle.dumps([Own, Toy]), capture_output=True)
        assert told.stdout.decode().strip() == "['Own', 'Toy']", told.stderr.decode()

    def test_old_names_of_methods():
        own = MeanStdFilter(())
        own(1.0)
        own.clear_buffer()
        assert own.buffer.n == 0

    @pytest.mark.parametrize("missing", [MultiAgentEnvWrapper, TFModelV2, Model])
    def test_what_is_missing(missing):
        with pytest.raises(NotImplementedError, match="swath has nothing in its place"):
            missing(1, two=2)

    @pytest.mark.parametrize(("one", "other", "same"), [
        ({"a": [1.0, (2,)]}, {"a": np.array([1.0, 2.0])[:1].tolist() + [(2,)]}, True),
        ({"a": 1}, [1], False),
        (1.0, 1.000001, True),
        (1.0, 1.1, False),
        (["a", "b"], np.array(["a", "c"]), False),
        (np.array([{}, None]), [{}, None], True),
    ])
    def test_check(one, other, same):
        check(one, other, false=not same)
        with pytest.raises(AssertionError):
            check(one, other, false=same)
"""

TOYS = """
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    class Toy(MultiAgentEnv):
        pass
"""

ENVS = """
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    class Settable(MultiAgentEnv):
        def __init__(self):
            super().__init__()
            self.num_agents = 3
            self.agents = list(range(self.num_agents))
"""

LISTED = """
    def test_single_agent_env():
        raise AssertionError("it must not be run")

    def test_multi_agent_env():
        pass

    def test_that_another_version_calls_otherwise():
        ws = WorkerSet._from_existing(None)
"""


@pytest.fixture
def report(tmp_path):
    folder = tmp_path / "rllib"
    write(folder / "evaluation/tests/test_written_for_rllib.py", TESTS)
    write(folder / "evaluation/tests/test_episode_v2.py", LISTED)
    write(folder / "env/tests/toys.py", TOYS)
    write(folder / "examples/env/multi_agent.py", ENVS)
    options = ("-p", "peers.rllib_shim", "-p", "no:cacheprovider", "--rootdir", folder)
    return run(folder, "-m", "pytest", *options, folder)


def test_tests_that_import_from_rllib_get_ours_and_what_is_left_out_has_its_reason(report):
    assert "score: 16 passed, 0 failed, 2 left out" in report
    by_name, by_use = [line for line in report.splitlines() if line.startswith("left out: ")]
    assert "evaluation/tests/test_episode_v2.py::test_single_agent_env: wants a MultiAgentBatch" in by_name
    assert "::test_that_another_version_calls_otherwise: hands workers made elsewhere to a set" in by_use
