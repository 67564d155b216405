"""The settings of workers and their policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.callbacks import CallbacksSettings
from swath.rollout_workers.config.env_runners import EnvRunnersSettings
from swath.rollout_workers.config.environment import EnvironmentSettings
from swath.rollout_workers.config.fault_tolerance import FaultToleranceSettings
from swath.rollout_workers.config.fragments import auto_length
from swath.rollout_workers.config.mapping import without_episode
from swath.rollout_workers.config.mapping_style import MappingStyle
from swath.rollout_workers.config.multi_agent import MultiAgentSettings, Policies
from swath.rollout_workers.config.places import PlacesSettings
from swath.rollout_workers.config.policy_spec import PolicySpec, specs
from swath.rollout_workers.config.remainder import RemainderSettings
from swath.rollout_workers.config.setup import Kind, Spaces, Surroundings, complete
from swath.rollout_workers.config.to_train import is_policy_to_train
from swath.rollout_workers.config.training import TrainingSettings
from swath.rollout_workers.config.validation import validate

if TYPE_CHECKING:
    PolicySetup = tuple[dict[str, PolicySpec], Callable[..., bool] | None]

_NO_ALGORITHMS = (
    "there are no algorithms to build here: build a WorkerSet(config=…) and update policies by worker.learn_on_batch, "
    "worker.sample_and_learn, or a loop of your own over swath.learn"
)


class AlgorithmConfig(
    EnvironmentSettings,
    EnvRunnersSettings,
    MultiAgentSettings,
    TrainingSettings,
    CallbacksSettings,
    FaultToleranceSettings,
    PlacesSettings,
    RemainderSettings,
    MappingStyle,
):
    """Settings of workers, set by fluent methods, as attributes, or from a dict; checked where they are set.

    Fluent methods change only what they are given and return the config, so that calls can be chained:
    `AlgorithmConfig().env_runners(num_env_runners=2).training(gamma=0.9)`.

    Args:
        algo_class: kept, not used: there are no algorithms here.
    """

    algo_class: type | None = None

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__()
        self.algo_class = algo_class

    def __repr__(self) -> str:
        default = AlgorithmConfig()
        different = [f"{name}={value!r}" for name, value in self.items() if repr(value) != repr(default.get(name))]
        frozen = "; frozen" if self.is_frozen else ""
        return f"<{type(self).__name__}: {', '.join(different) or 'as by default'}{frozen}>"

    @property
    def is_multi_agent(self) -> bool:
        """False only if `"default_policy"` is the only policy."""
        return set(self.policies) != {DEFAULT_POLICY_ID}

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps of each sub-env in a call, worked out for that worker if it is `"auto"`."""
        if isinstance(self.rollout_fragment_length, int):
            return self.rollout_fragment_length
        workers = max(1, self.num_env_runners)
        return auto_length(self.train_batch_size, self.num_envs_per_env_runner, workers, worker_index)

    def get_multi_agent_setup(
        self,
        *,
        policies: Policies | None = None,
        env: Any = None,
        spaces: Spaces | None = None,
        default_policy_class: type | None = None,
    ) -> PolicySetup:
        """Complete specs by policy id, and the function that says which learn (None: all).

        Args:
            policies: instead of the config's.
            env: a sub-env to look at.
            spaces: `(observation_space, action_space)` by policy id; of an env elsewhere under `"__env__"`.
            default_policy_class: of specs without one.

        Raises:
            ValueError: a policy without class or space, or whose agents have different spaces.
        """
        own: dict[Kind, Any] = {"observation": self.observation_space, "action": self.action_space}
        around = Surroundings(env, spaces or {}, without_episode(self.policy_mapping_fn), own)
        given = self.policies if policies is None else specs("policies", policies)
        setup = {
            pid: complete(pid, spec, default_policy_class, around, self.of_policy(spec)) for pid, spec in given.items()
        }
        return setup, is_policy_to_train(self.policies_to_train)

    def of_policy(self, spec: PolicySpec) -> AlgorithmConfig:
        """The settings of one policy: these with its overrides, or its own as they are."""
        if isinstance(spec.config, AlgorithmConfig):
            return spec.config
        return self.copy(copy_frozen=False).update_from_dict(spec.config or {})

    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """A thawed copy for workers that evaluate; None if this one is for such workers."""
        if self.in_evaluation:
            return None
        different = self.evaluation_config
        if isinstance(different, AlgorithmConfig):
            config = different.copy(copy_frozen=False)
        else:
            config = self.copy(copy_frozen=False).update_from_dict(different or {})
        return config.evaluation(None, in_evaluation=True)

    def validate(self) -> None:
        """Check settings against each other.

        Raises:
            ValueError: two of them contradict each other.
        """
        validate(self)

    def build(self, *_: Any, **__: Any) -> NoReturn:
        """There are no algorithms here.

        Raises:
            NotImplementedError: always; it says what to build.
        """
        raise NotImplementedError(_NO_ALGORITHMS)

    build_algo = build
