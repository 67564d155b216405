"""The check-list of `RolloutWorker`: every parameter and every method does what is written of it, and refuses the rest.

One row per item: what it is said to do, and what it is said to refuse, if anything, each a function that asserts it.
"""

import inspect

import checklist_arguments as arguments
import checklist_learning as learning
import checklist_methods as methods
import checklist_policies as policies
import pytest

from swath.rollout_workers import RolloutWorker

pytestmark = pytest.mark.usefixtures("warm_processes")

ARGUMENTS = {
    "env_creator": (arguments.env_creator, arguments.env_creator_refuses),
    "validate_env": (arguments.validate_env, arguments.validate_env_refuses),
    "config": (arguments.config, arguments.config_refuses),
    "worker_index": (arguments.worker_index, arguments.worker_index_refuses),
    "num_workers": (arguments.num_workers, None),
    "recreated_worker": (arguments.recreated_worker, None),
    "log_dir": (arguments.log_dir, None),
    "spaces": (arguments.spaces, arguments.spaces_refuses),
    "default_policy_class": (arguments.default_policy_class, arguments.default_policy_class_refuses),
    "dataset_shards": (arguments.dataset_shards, arguments.dataset_shards_refuses),
    "tf_session_creator": (arguments.tf_session_creator, arguments.tf_session_creator_refuses),
}
METHODS = {
    "add_policy": (policies.add_policy, policies.add_policy_refuses),
    "apply": (methods.apply, methods.apply_refuses),
    "apply_gradients": (learning.apply_gradients, learning.apply_gradients_refuses),
    "assert_healthy": (methods.assert_healthy, methods.assert_healthy_refuses),
    "compute_gradients": (learning.compute_gradients, learning.compute_gradients_refuses),
    "creation_args": (methods.creation_args, None),
    "find_free_port": (methods.find_free_port, None),
    "for_policy": (policies.for_policy, policies.for_policy_refuses),
    "foreach_env": (methods.foreach_env, None),
    "foreach_env_with_context": (methods.foreach_env_with_context, None),
    "foreach_policy": (policies.foreach_policy, None),
    "foreach_policy_to_train": (policies.foreach_policy_to_train, None),
    "get_filters": (policies.get_filters, None),
    "get_global_vars": (policies.get_global_vars, None),
    "get_host": (methods.get_host, None),
    "get_metrics": (methods.get_metrics, None),
    "get_node_ip": (methods.get_node_ip, None),
    "get_policies_to_train": (policies.get_policies_to_train, None),
    "get_policy": (policies.get_policy, None),
    "get_spaces": (methods.get_spaces, None),
    "get_state": (policies.get_state, None),
    "get_weights": (policies.get_weights, policies.get_weights_refuses),
    "learn_on_batch": (learning.learn_on_batch, learning.learn_on_batch_refuses),
    "lock": (methods.lock, methods.lock_refuses),
    "par_iter_init": (methods.par_iter_init, methods.par_iter_init_refuses),
    "par_iter_next": (methods.par_iter_next, methods.par_iter_next_refuses),
    "par_iter_next_batch": (methods.par_iter_next_batch, methods.par_iter_next_batch_refuses),
    "par_iter_slice": (methods.par_iter_slice, methods.par_iter_slice_refuses),
    "par_iter_slice_batch": (methods.par_iter_slice_batch, methods.par_iter_slice_batch_refuses),
    "ping": (methods.ping, None),
    "remove_policy": (policies.remove_policy, policies.remove_policy_refuses),
    "sample": (methods.sample, methods.sample_refuses),
    "sample_and_learn": (learning.sample_and_learn, learning.sample_and_learn_refuses),
    "sample_with_count": (methods.sample_with_count, None),
    "set_global_vars": (policies.set_global_vars, policies.set_global_vars_refuses),
    "set_is_policy_to_train": (policies.set_is_policy_to_train, policies.set_is_policy_to_train_refuses),
    "set_policy_mapping_fn": (policies.set_policy_mapping_fn, policies.set_policy_mapping_fn_refuses),
    "set_state": (policies.set_state, None),
    "set_weights": (policies.set_weights, policies.set_weights_refuses),
    "setup_torch_data_parallel": (learning.setup_torch_data_parallel, learning.setup_torch_data_parallel_refuses),
    "stop": (methods.stop, methods.stop_refuses),
    "sync_filters": (policies.sync_filters, policies.sync_filters_refuses),
    "teardown_torch_data_parallel": (learning.teardown_torch_data_parallel, None),
    "unlock": (methods.unlock, methods.unlock_refuses),
}
REST = {
    "__init__, keyword-only": (arguments.keyword_only, arguments.keyword_only_refuses),
    "base ParallelIteratorWorker": (arguments.base_of_iterators, None),
    "base EnvRunner": (arguments.base_of_runners, arguments.base_of_runners_refuses),
    "EnvContext": (arguments.env_context, None),
    "vectorised envs": (arguments.vectorised_envs, arguments.vectorised_envs_refuses),
    "multi-agent envs": (methods.multi_agent_envs, methods.multi_agent_envs_refuses),
    "replicas as Ray actors": (methods.replicas_as_ray_actors, None),
    "example: prints a SampleBatch": (methods.prints_a_sample_batch, None),
    "example: prints a MultiAgentBatch": (methods.prints_a_multi_agent_batch, None),
    "example: PPOTF1Policy, PGTFPolicy": (learning.torch_policies, learning.torch_policies_refuses),
    "example: policies as 4-tuples": (policies.policies_as_tuples, None),
    "example: AlgorithmConfig.overrides": (policies.overrides, policies.overrides_refuses),
    "example: mapping function without worker": (policies.mapping_without_worker, None),
}
OWN = {"begin_life"}
"""Methods that a `WorkerSet` needs, and no user."""

ITEMS = {**ARGUMENTS, **METHODS, **REST}
REFUSALS = [item for item, (_, refuses) in ITEMS.items() if refuses is not None]


def test_the_list_has_every_parameter_and_every_method_and_none_that_is_not_there():
    public = {
        name for name in dir(RolloutWorker) if not name.startswith("_") and callable(getattr(RolloutWorker, name))
    }
    assert set(METHODS) == public - OWN
    assert list(ARGUMENTS) == [each.name for each in arguments.own_parameters()]


@pytest.mark.parametrize("item", ITEMS)
def test_it_does_what_is_written(item, tmp_path):
    does, _ = ITEMS[item]
    does(tmp_path) if inspect.signature(does).parameters else does()


@pytest.mark.parametrize("item", REFUSALS)
def test_it_refuses_what_is_written(item):
    ITEMS[item][1]()
