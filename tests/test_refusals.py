"""What Swath no longer has is refused by name: what is tried, the error, and the way out that its message names."""

import gymnasium as gym
import numpy as np
import pytest

import swath
from swath import rollout_workers
from swath.evaluators import Evaluator
from swath.rollout_workers import AlgorithmConfig, MultiAgentBatch, RandomPolicy, RolloutWorker, SampleBatch, WorkerSet


class Written:
    """A replay buffer that workers write to themselves."""

    def client(self):
        return Written()

    def extend(self, td):
        """Keep nothing."""


def evaluator_of_creator(**options):
    """An evaluator in envs of TorchRL that share their state."""
    envs = pytest.importorskip("torchrl.envs")
    creator = envs.EnvCreator(lambda: envs.GymEnv("CartPole-v1"))
    return Evaluator(creator, policy_factory=dict, **options)


COLLECTORS: list = [
    pytest.param(lambda: swath.RayReplayBuffer, AttributeError, "torchrl.data.RayReplayBuffer", id="RayReplayBuffer"),
    pytest.param(
        lambda: swath.RayCollector("CartPole-v1", frames_per_batch=2, collector_class="sync", trajs_per_batch=1),
        TypeError,
        "trajs_per_batch does not pass through .* leave collector_class out",
        id="trajs_per_batch with collector_class",
    ),
    pytest.param(
        lambda: swath.MultiAsyncCollector(
            ["CartPole-v1"], frames_per_batch=2, max_staleness=1, replay_buffer=Written(), backend="thread"
        ),
        ValueError,
        r"max_staleness drops fragments .* give a buffer without client\(\)",
        id="max_staleness where workers write",
    ),
]
UPDATE = r"call update_policy_weights_\(\) of the collector that is to have the weights"
WEIGHTS: list = [
    pytest.param(lambda: swath.WeightSyncScheme().send({}), RuntimeError, UPDATE, id="send by hand"),
    pytest.param(lambda: swath.WeightSyncScheme().receive(), RuntimeError, UPDATE, id="receive by hand"),
    pytest.param(lambda: swath.WeightSyncScheme().connect(), RuntimeError, UPDATE, id="connect by hand"),
    pytest.param(
        lambda: swath.Collector(
            "CartPole-v1", frames_per_batch=1, weight_recv_schemes={"policy": swath.RayWeightSyncScheme()}
        ),
        RuntimeError,
        UPDATE,
        id="a scheme that no collector of this process sends with",
    ),
]
EVALUATION: list = [
    pytest.param(
        lambda: evaluator_of_creator().trigger_eval(weights_dict={"env.transform": {}}),
        ValueError,
        "EnvCreator are shared with training; leave env.transform out",
        id="statistics of an EnvCreator",
    ),
]
GONE_NAMES = {
    "RepeatedValues": "padded values and their lengths as two columns",
    **dict.fromkeys(("compress", "pack", "pack_if_needed", "unpack", "is_compressed"), "savez_compressed"),
}
GONE_OF_BATCHES = ["compress", "pack_if_needed", "decompress_if_needed", "set_get_interceptor", "accessed_keys"]
GONE_SETTINGS = {
    "compress_observations": "store batches with numpy.savez_compressed",
    "sampler_perf_stats_ema_coef": "means over all steps",
    "horizon": "TimeLimit",
}
BATCHES: list = [
    *(
        pytest.param(lambda name=name: getattr(rollout_workers, name), AttributeError, way_out, id=name)
        for name, way_out in GONE_NAMES.items()
    ),
    *(
        pytest.param(lambda made=made, name=name: getattr(made, name), AttributeError, "savez_compressed", id=name)
        for made in (SampleBatch(), MultiAgentBatch({}, 0))
        for name in GONE_OF_BATCHES
    ),
    *(
        pytest.param(
            lambda name=name: SampleBatch(a=[1]).to_device("cpu", **{name: 1}), ValueError, "torch.cuda.stream", id=name
        )
        for name in ("use_stream", "stream")
    ),
    *(
        pytest.param(lambda name=name: AlgorithmConfig().env_runners(**{name: 0.5}), ValueError, way_out, id=name)
        for name, way_out in GONE_SETTINGS.items()
    ),
]
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


class EmptyState(RandomPolicy):
    """Its first state is empty."""

    def get_initial_state(self):
        return [{}]


def worker_of(policy_class):
    return RolloutWorker(env_creator=lambda _: gym.make("CartPole-v1"), default_policy_class=policy_class)


SAMPLING: list = [
    pytest.param(
        lambda: AlgorithmConfig().env_runners(remote_worker_envs=True),
        ValueError,
        "take more workers, or gymnasium's AsyncVectorEnv",
        id="remote_worker_envs",
    ),
    pytest.param(
        lambda: AlgorithmConfig().env_runners(gym_env_vectorize_mode="async"),
        ValueError,
        "take more workers, or gymnasium's AsyncVectorEnv",
        id="gym_env_vectorize_mode",
    ),
    pytest.param(
        lambda: AlgorithmConfig().environment(render_env=True),
        ValueError,
        "swath.Evaluator records video",
        id="render_env",
    ),
    pytest.param(
        lambda: RolloutWorker(env_creator=lambda _: object(), default_policy_class=RandomPolicy),
        TypeError,
        "a TorchRL EnvBase goes to a swath.Collector",
        id="EnvBase from env_creator",
    ),
    pytest.param(
        lambda: WorkerSet(_setup=False).reset([None]),
        NotImplementedError,
        "give WorkerSet an env_creator and num_workers",
        id="WorkerSet.reset",
    ),
    pytest.param(
        lambda: WorkerSet(_setup=False).foreach_worker("ping", return_obj_refs=True),
        ValueError,
        "call `ray.put` in the function",
        id="return_obj_refs",
    ),
    pytest.param(
        lambda: WorkerSet(_setup=False).fetch_ready_async_reqs(mark_healthy=True),
        ValueError,
        "the set sees itself which workers live; leave it out",
        id="mark_healthy",
    ),
    pytest.param(
        lambda: RandomPolicy(BOX, BOX, {}).get_connector_metrics(),
        NotImplementedError,
        "worker.get_metrics",
        id="connector metrics",
    ),
    pytest.param(
        lambda: worker_of(EmptyState).sample(), ValueError, "begin with arrays of the shapes", id="empty initial state"
    ),
]


@pytest.mark.parametrize(
    ("attempt", "error", "way_out"),
    [*COLLECTORS, *WEIGHTS, *EVALUATION, *BATCHES, *SAMPLING],
)
def test_what_was_taken_out_is_refused_with_the_way_out(attempt, error, way_out):
    with pytest.raises(error, match=way_out):
        attempt()
