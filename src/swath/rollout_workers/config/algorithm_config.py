"""The settings of workers and their policies, as users of RLlib set them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn, Self, TypeAlias

from swath.nearest import suggestion
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.callbacks import EVENTS
from swath.rollout_workers.config.policy_spec import PolicySpec, Spaces, is_policy_to_train, policy_space, read_specs
from swath.rollout_workers.config.settings import NAMES, STEP_TIMEOUT_S, UNCHANGED, Settings

Policies: TypeAlias = Mapping[str, PolicySpec | tuple[Any, ...] | None] | Collection[str]
API_STACK = ("enable_rl_module_and_learner", "enable_env_runner_and_connector_v2")
PolicySetup: TypeAlias = tuple[dict[str, PolicySpec], Callable[..., bool] | None]


class AlgorithmConfig(Settings):
    """Settings of workers, set by fluent methods, as attributes, or from a dict; checked where they are set.

    Fluent methods change only the settings in their arguments and return the config, so that calls can be chained:
    `AlgorithmConfig().env_runners(num_env_runners=2).training(gamma=0.9)`. Old names of settings are read as their
    present names.

    Args:
        algo_class: kept, not used: there are no algorithms here.
    """

    def __repr__(self) -> str:
        default = AlgorithmConfig()
        different = [f"{name}={value!r}" for name, value in self.items() if repr(value) != repr(default.get(name))]
        frozen = "; frozen" if self.is_frozen else ""
        return f"<{type(self).__name__}: {', '.join(different) or 'as by default'}{frozen}>"

    @classmethod
    def of(cls, config: Any) -> AlgorithmConfig:
        """Return a config that may be changed: an unfrozen copy, or one built of a dict or None.

        Raises:
            TypeError: it is neither a config nor a dict.
        """
        if isinstance(config, AlgorithmConfig):
            return config.copy(copy_frozen=False)
        if config is not None and not isinstance(config, Mapping):
            kind = type(config).__name__
            raise TypeError(f"config={config!r} must be an AlgorithmConfig, a dict, or None, not {kind}")
        return cls.from_dict(config or {})

    @property
    def is_multi_agent(self) -> bool:
        """Return false only if `"default_policy"` is the only policy."""
        return set(self.policies) != {DEFAULT_POLICY_ID}

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Return the steps of each sub-env in a call, computed for that worker if it is `"auto"`.

        That is the even share of `train_batch_size` rounded down, one more on the first workers, at least 1. Worker 0,
        which samples where there are no others, counts as one of the first.
        """
        if isinstance(self.rollout_fragment_length, int):
            return self.rollout_fragment_length
        num_envs = self.num_envs_per_env_runner
        share, rest = divmod(self.train_batch_size, num_envs * max(1, self.num_env_runners))
        return max(1, share + ((worker_index - 1) * num_envs < rest if rest else 0))

    def get_multi_agent_setup(
        self,
        *,
        policies: Policies | None = None,
        env: Any = None,
        spaces: Spaces | None = None,
        default_policy_class: type | None = None,
    ) -> PolicySetup:
        """Return complete specs by policy id, and the function that says which learn (None: all).

        Args:
            policies: instead of the config's.
            env: a sub-env to look at.
            spaces: `(observation_space, action_space)` by policy id; of an env elsewhere under `"__env__"`.
            default_policy_class: of specs without one.

        Raises:
            ValueError: a policy without class or space, or whose agents have different spaces.
        """
        setup = {}
        for policy_id, spec in (self.policies if policies is None else read_specs("policies", policies)).items():
            policy_class = spec.policy_class or default_policy_class
            if policy_class is None:
                raise ValueError(f"policy {policy_id!r} has no class: give its spec one, or a default_policy_class")
            observation_space = policy_space(self, policy_id, spec, "observation", env, spaces or {})
            action_space = policy_space(self, policy_id, spec, "action", env, spaces or {})
            setup[policy_id] = PolicySpec(policy_class, observation_space, action_space, self.of_policy(spec))
        return setup, is_policy_to_train(self.policies_to_train)

    def of_policy(self, spec: PolicySpec) -> AlgorithmConfig:
        """Return the settings of one policy: these with its overrides, or its own config unchanged."""
        if isinstance(spec.config, AlgorithmConfig):
            return spec.config
        return self.copy(copy_frozen=False).update_from_dict(spec.config or {})

    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """Return an unfrozen copy for workers that evaluate; None if this one has `in_evaluation`."""
        if self.in_evaluation:
            return None
        config = self.of_policy(PolicySpec(config=self.evaluation_config))
        return config.copy(copy_frozen=False).evaluation(None, in_evaluation=True)

    def validate(self) -> None:
        """Check settings against each other.

        Raises:
            ValueError: two of them contradict each other.
        """
        if self.use_gae and not self.use_critic:
            raise ValueError("use_gae=True needs use_critic=True: it is made of values; set use_gae=False as well")
        if self.env_processes is None and self.step_timeout_s != STEP_TIMEOUT_S:
            message = f"step_timeout_s={self.step_timeout_s} is for env processes; set env_processes, or leave it out"
            raise ValueError(message)
        if (self.env_processes or 0) > self.num_envs_per_env_runner:
            message = f"env_processes={self.env_processes} for num_envs_per_env_runner={self.num_envs_per_env_runner}"
            raise ValueError(f"{message}: each process needs an env; use fewer processes")
        to_train = self.policies_to_train
        unknown = set() if to_train is None or callable(to_train) else set(to_train) - set(self.policies)
        if unknown:
            raise ValueError(f"policies_to_train has {sorted(unknown)}, but policies are {sorted(self.policies)}")
        if self.in_evaluation and self.evaluation_config is not None:
            raise ValueError("in_evaluation=True is what evaluation_config is for: evaluation_config must be None")
        self.get_evaluation_config_object()  # settings that wait to be applied are tried
        for spec in self.policies.values():
            self.of_policy(spec)

    def build(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `NotImplementedError`: there are no algorithms here.

        Raises:
            NotImplementedError: always; it says what to build.
        """
        raise NotImplementedError("no algorithms here: build a WorkerSet, and learn by its workers or by swath.learn")

    build_algo = build

    def _set_arguments(self, **settings: Any) -> Self:
        """Set the settings that a fluent method was given.

        Raises:
            TypeError: a keyword that is no setting.
        """
        changes = {name: value for name, value in settings.items() if value is not UNCHANGED}
        for name, value in changes.items():
            if name not in NAMES:
                raise TypeError(f"{name}={value!r} is no setting of {type(self).__name__}{suggestion(name, NAMES)}")
        return self.set_all(changes, merge=True)

    def environment(self, env: Any = UNCHANGED, **settings: Any) -> Self:
        """Set which env is used, and how its actions and rewards are processed.

        - `env`: what a `WorkerSet` without `env_creator` makes: a gymnasium id, a registered name, a class or callable.
        - `env_config`: the content of the `EnvContext`; merged with the present one, dict by dict.
        - `observation_space`, `action_space`: of policies for which neither spec nor env has one.
        - `clip_rewards`: True takes the sign, a number clips to [-number, number].
        - `normalize_actions`: policies act in [-1, 1], which is stretched to the bounds of a `Box`.
        - `clip_actions`: then clip to those bounds.
        """
        return self._set_arguments(env=env, **settings)

    def env_runners(self, num_env_runners: Any = UNCHANGED, **settings: Any) -> Self:
        """Set how many workers there are, how much each collects in a call, and its resources.

        - `num_env_runners`: remote workers of a set.
        - `num_envs_per_env_runner`: sub-envs of each worker.
        - `env_processes`: processes that the sub-envs of each worker live in, for slow envs of one agent; None: none.
          On Ray set `num_cpus_per_env_runner` to as many.
        - `step_timeout_s`: seconds that a process may take for a step, reset or rebuild of its sub-envs.
        - `rollout_fragment_length`: steps of each sub-env in a call; "auto": what `train_batch_size` needs.
        - `batch_mode`: "truncate_episodes", fragments of that length; "complete_episodes", whole ones of at least that.
        - `explore`: sample actions; False takes the mode.
        - `observation_filter`: by name, or `f(shape) -> Filter`.
        - `create_local_env_runner`: a set with remote workers has worker 0 as well.
        - `create_env_on_local_worker`: worker 0 has an env although there are remote workers.
        - `num_cpus_per_env_runner`: CPUs a worker asks for; also its torch threads.
        - `num_gpus_per_env_runner`: GPUs a worker asks for; above 0 its policies are on one.
        - `custom_resources_per_env_runner`: amounts by name, for Ray.
        - `validate_env_runners_after_construction`: a set waits until all workers are up.
        - `sample_timeout_s`: seconds that `WorkerSet.sample` waits.
        - `max_requests_in_flight_per_env_runner`: asynchronous requests, per worker and tag.
        - `use_worker_filter_stats`: filters of workers count when they are synchronised.
        - `update_worker_filter_stats`: workers get the filters that result.
        """
        return self._set_arguments(num_env_runners=num_env_runners, **settings)

    rollouts = env_runners

    def exploration(self, explore: bool = UNCHANGED, **settings: Any) -> Self:
        """Set whether actions are sampled, as `env_runners(explore=…)`; the policy decides how."""
        return self._set_arguments(explore=explore, **settings)

    def multi_agent(self, policies: Any = UNCHANGED, **settings: Any) -> Self:
        """Set the policies, and which agents each acts for.

        - `policies`: `PolicySpec` or a tuple of up to four by policy id; or ids alone.
        - `policy_mapping_fn`: `f(agent_id, episode, worker=worker) -> policy id`; `worker` only if it takes it. In
          an env with one agent it must give the policy that acts there.
        - `policies_to_train`: ids, or `f(policy_id, batch=None) -> bool`; None: all.
        - `count_steps_by`: what `rollout_fragment_length` counts, "env_steps" or "agent_steps".
        """
        return self._set_arguments(policies=policies, **settings)

    def training(self, gamma: float = UNCHANGED, **settings: Any) -> Self:
        """Set how policies learn.

        - `gamma`: discount.
        - `lr`: learning rate.
        - `lr_schedule`: `[[step, rate], …]` from step 0, interpolated at `global_timestep`; None: `lr` always.
        - `grad_clip`: bound of gradients; None: none.
        - `grad_clip_by`: what is bounded: "global_norm", "norm" of each, or "value" of every element.
        - `train_batch_size`: env steps of all workers together, for `rollout_fragment_length="auto"`.
        - `num_epochs`: passes of `sample_and_learn` over its batch.
        - `minibatch_size`: rows of a minibatch there; None or 0: the whole batch.
        - `shuffle_batch_per_epoch`: only True: minibatches are always shuffled.
        - `model`: the default network; merged with the present one, key by key.
        - `optimizer`: keywords of Adam; merged with the present ones, key by key.
        - `lambda_`: of generalised advantage estimation.
        - `use_gae`: advantages by it, else discounted returns.
        - `use_critic`: advantages are relative to the value function.
        - `clip_param`: how far PPO's ratio may leave 1.
        - `vf_clip_param`: bound of the value function's squared error.
        - `vf_loss_coeff`: weight of the value function's loss.
        - `entropy_coeff`: weight of the entropy.
        - `entropy_coeff_schedule`: as `lr_schedule`; None: `entropy_coeff` always.
        - `use_kl_loss`: whether the KL divergence is part of PPO's loss.
        - `kl_coeff`: its weight at the start.
        - `kl_target`: what `update_kl` steers it to.
        - `ignore_action_bounds`: `RandomPolicy` acts as if a `Box` were unbounded.
        """
        return self._set_arguments(gamma=gamma, **settings)

    def callbacks(self, callbacks_class: Any = UNCHANGED, **functions: Any) -> Self:
        """Set the callbacks.

        - `callbacks_class`: a class derived from `DefaultCallbacks`, or a list of them, called in order.
        - `on_episode_end` and each other method of `DefaultCallbacks`: a function with its keywords, or a list of
          functions.

        Raises:
            TypeError: another keyword.
        """
        for name in functions.keys() - EVENTS:
            raise TypeError(f"callbacks() got {name}={functions[name]!r}; known events are {', '.join(EVENTS)}")
        return self._set_arguments(callbacks_class=callbacks_class, callback_functions=functions)

    def fault_tolerance(self, restart_failed_env_runners: bool = UNCHANGED, **settings: Any) -> Self:
        """Set which workers and envs are replaced after failures, and the delays.

        - `restart_failed_env_runners`: a worker that died is replaced.
        - `ignore_env_runner_failures`: if it is not replaced, it is left out; with neither, its death is raised.
        - `max_num_env_runner_restarts`: replacements per worker.
        - `delay_between_env_runner_restarts_s`: seconds before the second replacement, doubling up to 30.
        - `num_consecutive_env_runner_failures_tolerance`: deaths in a row before the set gives up.
        - `restart_failed_sub_environments`: a sub-env that raised is rebuilt; else its exception is raised.
        - `env_runner_health_probe_timeout_s`: how long `probe_unhealthy_workers` waits.
        - `env_runner_restore_timeout_s`: seconds for any worker to start up.
        - `env_runner_hang_timeout_s`: a request that takes longer is a death; None: no limit.
        - `max_num_sub_environment_restarts`: failures of a sub-env in a row before its exception is raised.
        - `delay_between_sub_environment_restarts_s`: seconds before it is rebuilt, doubling to 5.
        """
        return self._set_arguments(restart_failed_env_runners=restart_failed_env_runners, **settings)

    def debugging(self, seed: int | None = UNCHANGED, **settings: Any) -> Self:
        """Set seeds and logging.

        - `seed`: root of all seeds; None: nothing is seeded.
        - `fake_sampler`: one real batch, then copies of it.
        - `log_level`: of the logger `swath`.
        """
        return self._set_arguments(seed=seed, **settings)

    def python_environment(self, extra_python_environs_for_driver: Any = UNCHANGED, **settings: Any) -> Self:
        """Set variables of `os.environ`.

        - `extra_python_environs_for_driver`: of the process of worker 0.
        - `extra_python_environs_for_worker`: of the other workers' processes.
        """
        return self._set_arguments(extra_python_environs_for_driver=extra_python_environs_for_driver, **settings)

    def resources(self, num_gpus: float = UNCHANGED, **settings: Any) -> Self:
        """Set the resources of worker 0; `env_runners` sets the others'.

        - `num_gpus`: above 0 its policies are on a GPU.
        - `_fake_gpus`: act as if GPUs were there, on the CPU.
        """
        return self._set_arguments(num_gpus=num_gpus, **settings)

    def framework(self, framework: str = UNCHANGED, **settings: Any) -> Self:
        """Accept "torch", the only framework."""
        return self._set_arguments(framework=framework, **settings)

    def api_stack(self, *stacks: bool, **settings: Any) -> Self:
        """Accept False twice: the old API stack, with policies and rollout workers, is the only one."""
        return self._set_arguments(**dict(zip(API_STACK, stacks, strict=False)), **settings)

    def evaluation(self, evaluation_config: Any = UNCHANGED, **settings: Any) -> Self:
        """Set the settings that differ for workers that evaluate.

        - `evaluation_config`: overrides, merged with the present ones dict by dict; or a whole config.
        - `in_evaluation`: these workers evaluate; their seeds differ from the seeds of training.
        """
        return self._set_arguments(evaluation_config=evaluation_config, **settings)

    def reporting(self, keep_per_episode_custom_metrics: bool = UNCHANGED, **settings: Any) -> Self:
        """Set the metrics that `collect_metrics` returns.

        - `keep_per_episode_custom_metrics`: custom metrics as lists, one value per episode.
        """
        return self._set_arguments(keep_per_episode_custom_metrics=keep_per_episode_custom_metrics, **settings)

    def experimental(self, _disable_preprocessor_api: bool = UNCHANGED, **settings: Any) -> Self:
        """Set exceptions from the usual processing.

        - `_disable_preprocessor_api`: observations reach policies as the env returned them.
        """
        return self._set_arguments(_disable_preprocessor_api=_disable_preprocessor_api, **settings)

    def offline_data(self, input_: str = UNCHANGED, **settings: Any) -> Self:
        """Set where rows come from.

        - `input_`: "sampler", envs; "dataset", the worker's `dataset_shards`.
        """
        return self._set_arguments(input_=input_, **settings)

    def checkpointing(self, **settings: Any) -> Self:
        """Set names that only RLlib has, as `rl_module` and `learners`: they are warned of or refused."""
        return self._set_arguments(**settings)

    rl_module = learners = checkpointing


class PPOConfig(AlgorithmConfig):
    """An `AlgorithmConfig` with the defaults of RLlib's PPO.

    They are `lr=5e-5`, `train_batch_size=4000`, `num_epochs=30`, `minibatch_size=128`, `num_env_runners=2` and
    `rollout_fragment_length="auto"`.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class)
        self.env_runners(num_env_runners=2, rollout_fragment_length="auto")
        self.training(lr=5e-5, train_batch_size=4000, num_epochs=30, minibatch_size=128)
