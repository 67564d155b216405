"""Removed features are refused by name: the attempt, the error, and the remedy in its message."""

import gymnasium as gym
import numpy as np
import pytest

import swath
from swath import rollout_workers
from swath.evaluators import Evaluator
from swath.rollout_workers import AlgorithmConfig, MultiAgentBatch, RandomPolicy, RolloutWorker, SampleBatch, WorkerSet


class Written:
    """A replay buffer that workers write to directly."""

    def client(self):
        return Written()

    def extend(self, td):
        """Keep nothing."""


class EmptyState(RandomPolicy):
    """A policy with an empty initial state."""

    def get_initial_state(self):
        return [{}]


BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
FRAMES = {"frames_per_batch": 2}
UPDATE = r"call update_policy_weights_\(\) of the collector that is to have the weights"
VECTORS, COMPRESS = "take more workers, or gymnasium's AsyncVectorEnv", "savez_compressed"


def evaluator_of_creator(**options):
    """Evaluate in TorchRL envs with a common state."""
    envs = pytest.importorskip("torchrl.envs")
    creator = envs.EnvCreator(lambda: envs.GymEnv("CartPole-v1"))
    return Evaluator(creator, policy_factory=dict, **options)


def writing(**options):
    return swath.MultiAsyncCollector(["CartPole-v1"], replay_buffer=Written(), backend="thread", **FRAMES, **options)


def nested(**options):
    return swath.RayCollector("CartPole-v1", collector_class="sync", **FRAMES, **options)


def receiving(scheme):
    return swath.Collector("CartPole-v1", weight_recv_schemes={"policy": scheme}, **FRAMES)


def settings(**options):
    return AlgorithmConfig().env_runners(**options)


def workers():
    return WorkerSet(_setup=False)


def worker_of(policy_class, env_creator=lambda _: gym.make("CartPole-v1")):
    return RolloutWorker(env_creator=env_creator, default_policy_class=policy_class)


OF_PACKAGE = "compress pack pack_if_needed unpack is_compressed"
OF_BATCHES = "compress pack_if_needed decompress_if_needed set_get_interceptor accessed_keys"
ATTRIBUTES = [
    (swath, "RayReplayBuffer", "torchrl.data.RayReplayBuffer"),
    (rollout_workers, "RepeatedValues", "padded values and their lengths as two columns"),
    *((rollout_workers, name, COMPRESS) for name in OF_PACKAGE.split()),
    *((batch, name, COMPRESS) for batch in (SampleBatch(), MultiAgentBatch({}, 0)) for name in OF_BATCHES.split()),
]


@pytest.mark.parametrize(("of", "name", "way_out"), ATTRIBUTES, ids=lambda value: str(value)[:20])
def test_a_name_that_was_taken_out_is_refused_with_the_way_out(of, name, way_out):
    with pytest.raises(AttributeError, match=way_out):
        getattr(of, name)


VALUE = {
    "max_staleness where workers write": (
        lambda: writing(max_staleness=1),
        r"max_staleness drops fragments .* give a buffer without client\(\)",
    ),
    "statistics of an EnvCreator": (
        lambda: evaluator_of_creator().trigger_eval(weights_dict={"env.transform": {}}),
        "EnvCreator are shared with training; leave env.transform out",
    ),
    "use_stream": (lambda: SampleBatch(a=[1]).to_device("cpu", use_stream=1), "torch.cuda.stream"),
    "stream": (lambda: SampleBatch(a=[1]).to_device("cpu", stream=1), "torch.cuda.stream"),
    "compress_observations": (lambda: settings(compress_observations=0.5), COMPRESS),
    "keep_float64": (lambda: settings(keep_float64=True), "with a Dict or Tuple set _disable_preprocessor_api"),
    "sampler_perf_stats": (lambda: settings(sampler_perf_stats_ema_coef=0.5), "means over all steps"),
    "horizon": (lambda: settings(horizon=0.5), "TimeLimit"),
    "remote_worker_envs": (lambda: settings(remote_worker_envs=True), VECTORS),
    "gym_env_vectorize_mode": (lambda: settings(gym_env_vectorize_mode="async"), VECTORS),
    "render_env": (lambda: AlgorithmConfig().environment(render_env=True), "swath.Evaluator records video"),
    "return_obj_refs": (
        lambda: workers().foreach_worker("ping", return_obj_refs=True),
        "call `ray.put` in the function",
    ),
    "mark_healthy": (
        lambda: workers().fetch_ready_async_reqs(mark_healthy=True),
        "the set sees itself which workers live; leave it out",
    ),
    "empty initial state": (lambda: worker_of(EmptyState).sample(), "begin with arrays of the shapes"),
}
RUNTIME = {
    "a scheme that no collector of this process sends with": (lambda: receiving(swath.RayWeightSyncScheme()), UPDATE),
}
TYPE = {
    "trajs_per_batch with collector_class": (
        lambda: nested(trajs_per_batch=1),
        "trajs_per_batch does not pass through .* leave collector_class out",
    ),
    "EnvBase from env_creator": (
        lambda: worker_of(RandomPolicy, lambda _: object()),
        "a TorchRL EnvBase goes to a swath.Collector",
    ),
}
MISSING = {
    "send by hand": (lambda: swath.WeightSyncScheme().send({}), UPDATE),
    "receive by hand": (lambda: swath.WeightSyncScheme().receive(), UPDATE),
    "connect by hand": (lambda: swath.WeightSyncScheme().connect(), UPDATE),
    "a transport": (lambda: swath.WeightSyncScheme().create_transport(), UPDATE),
    "WorkerSet.reset": (lambda: workers().reset([None]), "give WorkerSet an env_creator and num_workers"),
    "connector metrics": (lambda: RandomPolicy(BOX, BOX, {}).get_connector_metrics(), "worker.get_metrics"),
}
KINDS = {ValueError: VALUE, RuntimeError: RUNTIME, TypeError: TYPE, NotImplementedError: MISSING}


@pytest.mark.parametrize(
    ("error", "attempt", "way_out"),
    [pytest.param(error, *row, id=name) for error, rows in KINDS.items() for name, row in rows.items()],
)
def test_what_was_taken_out_is_refused_with_the_way_out(error, attempt, way_out):
    with pytest.raises(error, match=way_out):
        attempt()
