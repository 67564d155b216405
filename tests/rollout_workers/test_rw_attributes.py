"""What can be read of a worker: each attribute that is written of, on a worker of two envs that has learnt once."""

import pytest
from rw_toys import DEFAULT, learner

from swath.rollout_workers import AlgorithmConfig, DefaultCallbacks, EnvContext, PPOTorchPolicy

COUNTERS = {"env_steps_sampled": 20, "agent_steps_sampled": 20, "env_steps_discarded": 0}
COUNTERS |= {"episodes": 0, "episodes_faulty": 0, "sub_env_restarts": 0}
ATTRIBUTES = {
    "env": lambda worker: worker.env is worker.foreach_env(lambda env: env)[0],
    "async_env": lambda worker: worker.async_env.vector_env.envs == worker.async_env.get_sub_environments(),
    "policy_map": lambda worker: [*map(type, worker.policy_map.values())] == [PPOTorchPolicy],
    "policy_dict": lambda worker: None not in vars(worker.policy_dict[DEFAULT]).values(),
    "filters, preprocessors": lambda worker: [*worker.filters] == [*worker.preprocessors] == [DEFAULT],
    "policy_mapping_fn": lambda worker: worker.policy_mapping_fn("agent0", None) == DEFAULT,
    "is_policy_to_train": lambda worker: worker.is_policy_to_train is None,
    "total_rollout_fragment_length": lambda worker: worker.total_rollout_fragment_length == 20,
    "numbers of weights": lambda worker: (worker.weights_seq_no, worker.policy_version) == (None, 1),
    "counters": lambda worker: {**worker.counters, "episodes": 0} == COUNTERS,
    "config": lambda worker: isinstance(worker.config, AlgorithmConfig),
    "env_context": lambda worker: type(worker.env_context) is EnvContext and worker.env_context.worker_index == 0,
    "env_creator": lambda worker: callable(worker.env_creator),
    "callbacks": lambda worker: isinstance(worker.callbacks, DefaultCallbacks),
    "spaces": lambda worker: worker.spaces == worker.get_spaces(),
    "who it is": lambda worker: (worker.worker_index, worker.num_workers, worker.recreated_worker) == (0, 0, False),
    "seed": lambda worker: worker.seed == 3,
    "default_policy_class": lambda worker: worker.default_policy_class is PPOTorchPolicy,
    "global_vars": lambda worker: worker.global_vars == {"timestep": 0, "num_grad_updates_per_policy": {}},
    "last_batch": lambda worker: worker.last_batch is None,
}


@pytest.fixture(scope="module")
def worker():
    with learner(num_envs_per_env_runner=2) as made:
        made.learn_on_batch(made.sample())
        yield made


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_it_is_what_is_written(name, worker):
    assert ATTRIBUTES[name](worker)


def test_a_fake_sampler_keeps_its_batch_and_hands_out_copies():
    with learner(fake_sampler=True) as worker:
        assert worker.sample() is not worker.last_batch is not None
