"""Of the check-list: what a worker is built with. Each function asserts what an item is said to do, or to refuse."""

import inspect
import logging
import pickle

import gymnasium as gym
import numpy as np
import pytest
from checklist_toys import DEFAULT, bare, learner, mock, spaces_of
from sampling_toys import counting_worker

from swath.rollout_workers import (
    AlgorithmConfig,
    EnvContext,
    EnvRunner,
    ParallelIteratorWorker,
    PGTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    SampleBatch,
)
from swath.testing.counting_env import CountingEnvs
from swath.testing.envs import BasicMultiAgent, MockEnv
from swath.testing.faults import Fault

DEFAULTS = {
    "env_creator": None,
    "validate_env": None,
    "config": None,
    "worker_index": 0,
    "num_workers": None,
    "recreated_worker": False,
    "log_dir": None,
    "spaces": None,
    "default_policy_class": None,
    "dataset_shards": None,
    "tf_session_creator": -1,
}


def own_parameters():
    """Those of `RolloutWorker` without the one that `ray.remote` adds to the classes it is given."""
    return [each for each in inspect.signature(RolloutWorker).parameters.values() if each.name != "_ray_trace_ctx"]


def keyword_only():
    parameters = own_parameters()
    assert {each.name: each.default for each in parameters} == DEFAULTS
    assert {each.kind for each in parameters} == {inspect.Parameter.KEYWORD_ONLY}


def keyword_only_refuses():
    with pytest.raises(TypeError, match="positional"):
        RolloutWorker(MockEnv)
    with pytest.raises(TypeError, match="unknown"):
        RolloutWorker(unknown=1)
    factory = CountingEnvs(faults={2: [Fault("raise_at_build")]})
    with pytest.raises(RuntimeError, match="env 2"):
        mock(env_creator=lambda _: factory(), config={"num_envs_per_env_runner": 3})
    assert [env.closed for env in factory.made] == [1, 1], "what was made is closed"


def base_of_iterators():
    assert issubclass(RolloutWorker, ParallelIteratorWorker)
    with mock() as worker:
        worker.par_iter_init([])
        assert worker.par_iter_next().count == 200


def base_of_runners():
    assert issubclass(RolloutWorker, EnvRunner)
    names = ("sample", "get_state", "set_state", "get_spaces", "assert_healthy", "apply", "ping", "stop")
    assert all(callable(getattr(EnvRunner, name)) for name in names)


def base_of_runners_refuses():
    with pytest.raises(TypeError, match="abstract"):
        EnvRunner()


def env_creator():
    told = []

    def create(context, /):
        told.append((context.vector_index, context["of"]))
        context["of"].append("mine")
        return MockEnv(5, context)

    config = {"num_envs_per_env_runner": 3, "env_config": {"of": []}}
    with mock(env_creator=create, config=config) as worker:
        assert told == [(n, ["mine"]) for n in range(3)]
        assert len({id(of) for _, of in told}) == 3, "a deep copy each"
        assert worker.env is worker.async_env.get_sub_environments()[0]
        assert worker.env_creator is create
    with bare() as without:
        assert (without.env, without.async_env, without.env_creator) == (None, None, None)


def env_creator_refuses():
    with pytest.raises(TypeError, match="env_creator made"):
        mock(env_creator=lambda _: object())


def validate_env():
    seen = []
    factory = CountingEnvs(faults={1: [Fault("raise", step=2)]})
    own = {"restart_failed_sub_environments": True, "delay_between_sub_environment_restarts_s": 0.0}
    config = {"num_envs_per_env_runner": 2, "rollout_fragment_length": 4, **own}
    check = lambda env, context: seen.append((env, context.vector_index)) or "not used"
    with mock(env_creator=lambda _: factory(), validate_env=check, config=config) as worker:
        worker.sample()
    assert seen == [(env, index) for env, index in zip(factory.made, (0, 1, 1), strict=True)]


def validate_env_refuses():
    factory = CountingEnvs()

    def check(env, context):
        raise LookupError("not this one")

    with pytest.raises(LookupError, match="not this one"):
        mock(env_creator=lambda _: factory(), validate_env=check)
    assert [env.closed for env in factory.made] == [1]


def config():
    given = AlgorithmConfig().env_runners(rollout_fragment_length=7)
    before = given.to_dict()
    with mock(config=given) as worker:
        assert given.to_dict() == before
        assert not given.is_frozen
        given.env_runners(rollout_fragment_length=9)
        assert worker.sample().count == worker.config.rollout_fragment_length == 7
    with mock(config={"rollout_fragment_length": 3}) as worker:
        assert worker.sample().count == 3
    with mock() as worker:
        assert worker.sample().count == AlgorithmConfig().rollout_fragment_length == 200
    given.freeze()
    with mock(config=given) as worker:
        assert worker.sample().count == 9


def config_refuses():
    with pytest.raises(TypeError, match="config=3"):
        mock(config=3)
    with pytest.raises(ValueError, match="batch_mode"):
        mock(config={"batch_mode": "some_episodes"})


def worker_index():
    config = {"seed": 5, "num_envs_per_env_runner": 2}
    workers = [counting_worker(**config)[0], *(mock(worker_index=n, num_workers=2, config=config) for n in (1, 2))]
    assert [worker.worker_index for worker in workers] == [0, 1, 2]
    assert [worker.env_context.worker_index for worker in workers] == [0, 1, 2]
    assert len({worker.seed for worker in workers}) == 3
    assert workers[0].seed == 5
    for worker in workers:
        worker.stop()
    config = {"input_": "dataset", "rollout_fragment_length": 1}
    shards = [[{"obs": np.full(1, n)}] for n in range(3)]
    with bare(worker_index=2, dataset_shards=shards, config=config) as worker:
        assert worker.sample()["obs"].tolist() == [2]


def worker_index_refuses():
    with pytest.raises(ValueError, match="worker_index"):
        mock(worker_index=-1)


def num_workers():
    nowhere = {"create_local_env_runner": False, "num_env_runners": 3}
    space = {"__env__": tuple(spaces_of().values())}
    with mock(config=nowhere, spaces=space) as worker:
        assert (worker.num_workers, worker.env) == (3, None)
    with mock(config=nowhere, num_workers=0) as worker:
        assert (worker.num_workers, worker.env_context.num_workers) == (0, 0)
        assert worker.env is not None
    with mock(config={**nowhere, "create_env_on_local_worker": True}) as worker:
        assert worker.env is not None
    with mock(config=nowhere, worker_index=1) as worker:
        assert worker.env is not None


def recreated_worker():
    for recreated in (False, True):
        with mock(recreated_worker=recreated, worker_index=1, config={"num_envs_per_env_runner": 2}) as worker:
            contexts = worker.foreach_env_with_context(lambda env, context: context.recreated_worker)
            made_with = worker.foreach_env(lambda env: env.config.recreated_worker)
            assert [worker.recreated_worker, *contexts, *made_with] == [recreated] * 5


def log_dir(tmp_path):
    with mock(log_dir=str(tmp_path / "new" / "logs")) as worker:
        worker.sample()
        logging.getLogger("swath").warning("said")
    assert "said" in (tmp_path / "new" / "logs" / "worker_0.log").read_text()
    before = set(tmp_path.rglob("*"))
    with mock() as worker:
        worker.sample()
    assert set(tmp_path.rglob("*")) == before


def spaces():
    box, few = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(4)
    given = {"a": (box, few), "__env__": (few, few)}
    with bare(spaces=given, config={"policies": ["a", "b"]}) as worker:
        assert worker.get_spaces() == {"a": (box, few), "b": (few, few), "__env__": (few, few)}
        assert worker.spaces == worker.get_spaces()


def spaces_refuses():
    with pytest.raises(ValueError, match=DEFAULT):
        bare(spaces=None)


def default_policy_class():
    config = {"policies": {"own": (PGTorchPolicy, None, None, {}), "plain": (None, None, None, {})}}
    config |= {"policy_mapping_fn": lambda *_, **__: "own"}
    with mock(env_creator=lambda _: BasicMultiAgent(1), config=config) as worker:
        kinds = {pid: type(policy) for pid, policy in worker.policy_map.items()}
        assert kinds == {"own": PGTorchPolicy, "plain": RandomPolicy}
        assert worker.default_policy_class is RandomPolicy


def default_policy_class_refuses():
    with pytest.raises(ValueError, match=f"'{DEFAULT}' has no class"):
        mock(default_policy_class=None)


class Dataset:
    """As Ray's."""

    def iter_batches(self, *, batch_size, batch_format):
        assert (batch_size, batch_format) == (4, "numpy")
        yield {"obs": np.arange(3)}
        yield {"obs": np.arange(3, 7)}


def dataset_shards():
    config = {"input_": "dataset", "rollout_fragment_length": 2, "num_envs_per_env_runner": 2}
    rows = [{"obs": np.arange(3)}, SampleBatch(obs=np.arange(3, 7))]
    for shard in (rows, Dataset()):
        with bare(config=config, worker_index=1, dataset_shards=[None, shard]) as worker:
            batches = [worker.sample() for _ in range(3)]
        assert [batch["obs"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 0], [1, 2, 3, 4]]
        assert set(batches[0]) == {"obs"}, "nothing is added"


def dataset_shards_refuses():
    with pytest.raises(ValueError, match=r"dataset_shards\[1\]; there are 1"):
        bare(config={"input_": "dataset"}, worker_index=1, dataset_shards=[[]])
    with pytest.raises(ValueError, match="input_='sampler'"):
        bare(dataset_shards=[[]])


def tf_session_creator():
    for nothing in (-1, None):
        mock(tf_session_creator=nothing).stop()


def tf_session_creator_refuses():
    with pytest.raises(ValueError, match="torch only"):
        mock(tf_session_creator=print)


def env_context():
    content = {"list": [1]}
    context = EnvContext(content, 2, vector_index=1, remote=True, num_workers=3, recreated_worker=True)
    attributes = (2, 1, True, 3, True)
    for each in (context, pickle.loads(pickle.dumps(context)), context.copy_with_overrides()):
        assert each == content
        said = (each.worker_index, each.vector_index, each.remote, each.num_workers, each.recreated_worker)
        assert said == attributes
    other = context.copy_with_overrides(vector_index=5)
    other["list"].append(2)
    assert (other.vector_index, context.vector_index, content) == (5, 1, {"list": [1]})
    context.set_defaults({"list": [], "new": 3})
    assert context == {"list": [1], "new": 3}
    assert "worker=2/3, vector_idx=1, remote=True" in str(context)


def vectorised_envs():
    envs = lambda _: gym.vector.SyncVectorEnv([lambda: MockEnv(5)] * 3)
    config = {"num_envs_per_env_runner": 3, "rollout_fragment_length": 4}
    with learner(num_envs_per_env_runner=3) as several, mock(env_creator=envs, config=config) as one:
        assert several.sample().count == 30
        assert one.sample()["t"].tolist() == [0, 1, 2, 3] * 3


def vectorised_envs_refuses():
    envs = lambda _: gym.vector.SyncVectorEnv([lambda: MockEnv(5)] * 3)
    with pytest.raises(ValueError, match="num_envs_per_env_runner=4, but the vector env has 3"):
        mock(env_creator=envs, config={"num_envs_per_env_runner": 4})
