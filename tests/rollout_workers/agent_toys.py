"""Workers whose envs have several agents, and policies whose answers are foreseen, for tests."""

import numpy as np

from swath.rollout_workers import AlgorithmConfig, Policy
from swath.rollout_workers.batches.names import views
from swath.rollout_workers.worker.worker import RolloutWorker


class Counter(Policy):
    """Answers 0, 1, 0, 1, … by the row of the call; keeps what it was asked.

    Attributes:
        asked: the observations of each call.
        error: raised by the next call.
    """

    wanted = ()

    def __init__(self, observation_space, action_space, config):
        super().__init__(observation_space, action_space, config)
        self.view_requirements = views(*self.wanted)
        self.asked = []
        self.error = None

    def compute_actions(self, obs_batch, state_batches=None, **given):
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.asked.append(np.array(obs_batch))
        n = len(obs_batch)
        return np.arange(n) % 2, [], {"asked": np.full(n, len(self.asked))}


class Troupe(RolloutWorker):
    """A worker.

    Args:
        make: makes an env.
        num_envs: how many.
        policies: classes by id.
        mapping: `f(agent, episode) -> policy id`.
        callbacks: an instance.
        config: settings.

    Attributes:
        built: all envs that were ever made, in order.
    """

    def __init__(self, make, num_envs=1, policies=None, mapping=None, callbacks=None, **config):
        classes = policies or {"default_policy": Counter}
        settings = AlgorithmConfig().update_from_dict({"num_envs_per_env_runner": num_envs, **config})
        settings.multi_agent(policies={pid: (kind, None, None, {}) for pid, kind in classes.items()})
        if mapping is not None:
            settings.multi_agent(policy_mapping_fn=lambda agent, episode, **kwargs: mapping(agent, episode))
        if callbacks is not None:
            settings.callbacks(lambda: callbacks)
        self.built = []
        super().__init__(env_creator=lambda context: self.built.append(make()) or self.built[-1], config=settings)

    @property
    def made(self):
        return self.envs.view.get_sub_environments()

    @property
    def counts(self):
        return self.envs.counts
