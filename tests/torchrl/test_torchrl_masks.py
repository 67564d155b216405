"""Random actions where an env writes a mask beside its observation."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from torchrl.envs import EnvBase, SerialEnv

from swath import Collector, RandomPolicy

CHOICES = 4
FLAG = Categorical(2, dtype=torch.bool, shape=(1,))


class Rules(EnvBase):
    """Allows one choice of each part, another one after each step; `allows` says which, given the step."""

    def __init__(self, action, allows=lambda step: step % CHOICES):
        super().__init__()
        self.allows, self.step_nr = allows, 0
        mask = Categorical(2, dtype=torch.bool, shape=(CHOICES,))
        self.action_spec = Composite(action=action)
        self.observation_spec = Composite(step=Unbounded((1,)), action_mask=mask)
        self.reward_spec, self.done_spec = Unbounded((1,)), Composite(done=FLAG, terminated=FLAG.clone())

    def _seen(self):
        allowed = torch.zeros(CHOICES, dtype=torch.bool)
        allowed[self.allows(self.step_nr)] = True
        return {"step": torch.tensor([float(self.step_nr)]), "action_mask": allowed}

    def _reset(self, tensordict=None, **kwargs):
        self.step_nr = 0
        return TensorDict(self._seen())

    def _step(self, tensordict):
        self.step_nr += 1
        no = torch.zeros(1, dtype=torch.bool)
        return TensorDict({**self._seen(), "reward": torch.zeros(1), "done": no, "terminated": no.clone()})

    def _set_seed(self, seed):
        """There is no randomness."""


def drawn(env, policy=None, **options):
    with Collector(env, policy, frames_per_batch=16, **options) as collector:
        return next(iter(collector))


STEPS = torch.arange(16) % CHOICES


@pytest.mark.parametrize("policy", [None, RandomPolicy()])
@pytest.mark.parametrize(
    ("spec", "chosen"),
    [
        (Categorical(CHOICES), lambda action: action),
        (Categorical(CHOICES, shape=(1,)), lambda action: action[:, 0]),
        (OneHot(CHOICES), lambda action: action.long().argmax(-1)),
    ],
    ids=["categorical", "in a column", "one-hot"],
)
def test_random_actions_are_those_that_a_bare_mask_allows(policy, spec, chosen):
    assert torch.equal(chosen(drawn(lambda: Rules(spec.clone()), policy)["action"]), STEPS)


@pytest.mark.parametrize("spec", [MultiCategorical((2, 2)), MultiOneHot((2, 2))], ids=["categorical", "one-hot"])
def test_every_part_of_an_action_obeys_its_part_of_the_mask(spec):
    env = lambda: Rules(spec.clone(), allows=lambda step: [step % 2, 2 + (step // 2) % 2])
    action = drawn(env)["action"].long()
    if spec.shape == (CHOICES,):
        action = torch.stack([part.argmax(-1) for part in action.split(2, dim=-1)], -1)
    steps = torch.arange(16)
    assert torch.equal(action, torch.stack([steps % 2, (steps // 2) % 2], -1))


def test_random_actions_of_a_batch_obey_each_envs_mask_also_before_the_policy_begins():
    env = SerialEnv(2, [lambda: Rules(OneHot(CHOICES)), lambda: Rules(OneHot(CHOICES), allows=lambda step: 3)])
    policy = lambda tensordict: tensordict.set("action", torch.zeros(2, CHOICES, dtype=torch.bool))
    action = drawn(env, policy, init_random_frames=1)["action"].long().argmax(-1)
    assert action.tolist() == [STEPS[:8].tolist(), [3] * 8]
