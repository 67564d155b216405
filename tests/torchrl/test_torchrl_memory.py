"""Entries that a recurrent policy reads and the env lacks: supplied by the collector, by transforms, or missing."""

import copy

import gymnasium as gym
import pytest
import torch
import torchrl_toys as toys
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from torchrl.envs import Compose, EnvBase, GymEnv, InitTracker, ObservationNorm, SerialEnv, TransformedEnv
from torchrl_toys import Counting, lean_left

from swath import Collector, MultiProcessedWeightSyncScheme, MultiSyncCollector, RandomPolicy

pytestmark = pytest.mark.usefixtures("fork_server")


def policy():
    return toys.lstm(1)[1]


def first(env, *args, frames=12, **options):
    with Collector(env, *args, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def written(env):
    return list(env.full_observation_spec.keys(True, True))


@pytest.mark.parametrize("register", [None, True])
def test_what_an_env_lacks_is_supplied_beside_it(register):
    env = Counting()
    with Collector(env, policy(), frames_per_batch=12, auto_register_policy_transforms=register) as collector:
        assert collector.env is env
        batch = next(iter(collector))
    by_transforms = first(primed(), policy())
    for key in ("action", "features", "is_init", "recurrent_state_h", ("next", "recurrent_state_c")):
        assert torch.equal(batch[key], by_transforms[key]), key


def tracked():
    return TransformedEnv(Counting(), InitTracker())


def primed():
    return TransformedEnv(tracked(), toys.lstm(1)[0].make_tensordict_primer())


@pytest.mark.parametrize("make", [tracked, primed, lambda: SerialEnv(2, tracked)], ids=["tracked", "primed", "serial"])
def test_what_the_env_writes_already_is_not_supplied_again(make):
    with Collector(make, policy(), frames_per_batch=4, auto_register_policy_transforms=True) as collector:
        assert [key for key in written(collector.env) if key[-1] == "is_init" or key == "is_init"] == ["is_init"]
        assert next(iter(collector))["recurrent_state_h"].shape[-1] == 5


def test_nothing_is_supplied_where_that_is_refused():
    with pytest.raises(KeyError, match="is_init"):
        Collector(Counting(), policy(), frames_per_batch=4, auto_register_policy_transforms=False)


def test_an_env_of_gymnasium_takes_no_transforms_and_is_supplied_beside():
    def count(observation, state, is_init):
        state = observation.new_zeros(1) if state is None else state
        return observation.sum().long() * 0, state + 1

    module = TensorDictModule(count, ["observation", "state", "is_init"], ["action", ("next", "state")])
    batch = first(lambda: gym.make("CartPole-v1"), module, auto_register_policy_transforms=True)
    assert batch["state"].flatten()[:4].tolist() == [0, 1, 2, 3]


CHOICES = 4
FLAG = Categorical(2, dtype=torch.bool, shape=(1,))


class Rules(EnvBase):
    """An env whose mask allows one choice of each part, by the step: `allows(step)`."""

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
        """Do nothing, since the env is deterministic."""


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


FIRST = "env.transform[0]"


def normed(loc=0.0):
    """CartPole whose observations are shifted."""
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(norm(loc)))


def norm(loc):
    return ObservationNorm(loc=torch.tensor(float(loc)), scale=torch.tensor(1.0), in_keys=["observation"])


def shift(collector):
    """Return the shift of observations: CartPole begins near 0."""
    return collector.next()["observation"][..., 0, :].mean().round().item()


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_transform_of_the_workers_envs_is_updated_beside_the_policy(backend):
    schemes = {"policy": MultiProcessedWeightSyncScheme(), FIRST: MultiProcessedWeightSyncScheme()}
    with MultiSyncCollector(
        [normed] * 2,
        lean_left,
        frames_per_batch=4,
        reset_at_each_iter=True,
        backend=backend,
        weight_sync_schemes=schemes,
    ) as collector:
        assert shift(collector) == 0
        collector.update_policy_weights_(weights_dict={"policy": {}, FIRST: norm(5)})
        assert collector.policy_version == 1
        assert shift(collector) == 5
        shifted = {"loc": torch.tensor(-3.0), "scale": torch.tensor(1.0)}
        collector.update_policy_weights_(shifted, model_id=FIRST, worker_ids=0)
        batch = collector.next()["observation"][..., 0, :].mean(-1).round()
        assert batch.tolist() == [-3, 5]


def test_a_collector_takes_a_transforms_weights_from_another():
    sender, options = MultiProcessedWeightSyncScheme(), {"frames_per_batch": 4, "reset_at_each_iter": True}
    with MultiSyncCollector([normed], lean_left, backend="inline", weight_sync_schemes={FIRST: sender}, **options):
        receivers = {FIRST: copy.copy(sender)}
        with Collector(normed, lean_left, weight_recv_schemes=receivers, **options) as collector:
            assert shift(collector) == 0
            sender.context.update_policy_weights_(norm(7), model_id=FIRST)
            assert shift(collector) == 7
            assert collector.policy_version == 1
            assert isinstance(collector.get_model(FIRST), ObservationNorm)
