"""Evaluations in TorchRL's envs: assignment of episodes, seeds, rewards and ends."""

from functools import partial

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, SerialEnv
from torchrl_toys import Agents, Answer, lstm

from swath.evaluators import Evaluator

pytestmark = pytest.mark.usefixtures("fork_server")

SHORT, LONG = 3, 41


class Coin(EnvBase):
    """An env with episodes of 3 or 41 steps, by its seed, which raises when it is stepped past its end."""

    def __init__(self, endless=False):
        super().__init__(batch_size=torch.Size(()))
        self.endless, self.steps, self.closed = endless, 0, False
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Bounded(-1, 1, (1,))
        self.reward_spec = Unbounded((1,))
        flag = {"dtype": torch.bool, "shape": (1,)}
        self.done_spec = Composite({name: Categorical(2, **flag) for name in ("done", "terminated", "truncated")})
        self._set_seed(0)

    def _set_seed(self, seed):
        self.rng = torch.Generator().manual_seed(seed)

    def close(self, **kwargs):
        self.closed = True
        return super().close(**kwargs)

    def _reset(self, tensordict=None, **kwargs):
        self.token = int(torch.randint(1000, (), generator=self.rng))
        self.length = SHORT if self.token % 2 else LONG
        self.t = 0
        return self._seen()

    def _step(self, tensordict):
        assert self.endless or self.t < self.length, "stepped past its end"
        self.t += 1
        self.steps += 1
        over = torch.tensor([not self.endless and self.t >= self.length])
        reward = torch.tensor([float((self.token + self.t) % 11)])
        flags = {"done": over, "terminated": over.clone(), "truncated": torch.zeros_like(over)}
        return self._seen().update({"reward": reward, **flags})

    def _seen(self):
        return TensorDict({"observation": torch.tensor([float(self.token), float(self.t)])})


def still(env=None):
    return Answer(lambda observation: torch.zeros_like(observation[..., :1]))


def evaluated(env, policy, **options):
    with Evaluator(env, policy, **{"num_trajectories": 7, **options}) as evaluator:
        return evaluator.evaluate()


@pytest.fixture(scope="module")
def reference():
    return evaluated(Coin, still())


@pytest.mark.parametrize(
    "layout", [{"num_envs": 3}, {"num_envs": 9}, {"backend": "process", "num_envs": 2, "num_workers": 2}], ids=str
)
def test_numbers_of_single_envs_do_not_depend_on_how_many_are_stepped_together(layout, reference):
    with Evaluator(Coin, policy_factory=still, num_trajectories=7, **layout) as evaluator:
        result = evaluator.evaluate()
    assert set(reference.lengths.tolist()) == {SHORT, LONG}
    assert result.returns.tolist() == reference.returns.tolist()
    assert result.lengths.tolist() == reference.lengths.tolist()
    assert result.seeds.tolist() == reference.seeds.tolist()
    assert result.seeding == "episode"


def test_a_batch_plays_its_quota_and_nobody_is_stepped_past_an_end():
    for n in (2, 5, 9):
        result = evaluated(SerialEnv(n, Coin), still())
        assert result.seeding == "layout"
        assert set(result.seeds.tolist()) == {-1}
        assert set(result.lengths.tolist()) <= {SHORT, LONG}


def test_sub_envs_that_end_sooner_do_not_count_more_often():
    class Fixed(Coin):
        made = 0

        def __init__(self):
            super().__init__()
            Fixed.made += 1
            self.fixed = (SHORT, LONG)[Fixed.made % 2]

        def _reset(self, tensordict=None, **kwargs):
            super()._reset()
            self.length = self.fixed
            return self._seen()

    result = evaluated(SerialEnv(2, Fixed), still(), num_trajectories=10)
    assert result["eval/episode_length"] == (SHORT + LONG) / 2


class Untruncated(Coin):
    """An env without a truncated flag."""

    def __init__(self):
        super().__init__(endless=True)
        del self.done_spec["truncated"]

    def _step(self, tensordict):
        return super()._step(tensordict).exclude("truncated")


@pytest.mark.parametrize(
    ("make", "num_envs"),
    [
        (partial(Coin, endless=True), 2),
        (Untruncated, 2),
        (partial(SerialEnv, 3, partial(Coin, endless=True)), None),
        (partial(SerialEnv, 2, Untruncated), None),
    ],
    ids=["single", "untruncated", "batch", "batch-untruncated"],
)
def test_max_steps_cuts_and_shows_as_truncated_in_the_trajectories(make, num_envs):
    batches = []

    def measure(batch):
        batches.append(batch)
        return {"rows": batch.shape[0]}

    result = evaluated(make, still(), num_envs=num_envs, max_steps=4, metrics_fn=measure)
    flags = batches[0]["next"]
    assert result.lengths.tolist() == [4] * result["eval/rows"] == [4] * 7
    assert result.truncated.all()
    assert not result.terminated.any()
    for name in ("truncated", "done"):
        assert flags[name][..., 0].tolist() == [[False] * 3 + [True]] * 7
    assert batches[0]["collector", "traj_ids"][:, 0].tolist() == list(range(7))


class Summing(Coin):
    """An env that writes a sum of its rewards."""

    def __init__(self):
        super().__init__()
        self.observation_spec["episode_reward"] = Unbounded((1,))

    def _seen(self):
        return super()._seen().set("episode_reward", torch.tensor([100.0 * self.t]))


def test_envs_of_a_list_must_write_the_same_entries():
    with pytest.raises(ValueError, match=r"env 1 has other entries than env 0: .*episode_reward"):
        evaluated([Coin, Summing], still())


def test_what_the_env_has_summed_beside_the_reward_is_the_return():
    result = evaluated(Summing, still(), num_envs=2)
    assert result.returns.tolist() == [100.0 * length for length in result.lengths]


def test_rewards_of_agents_are_averaged_and_a_group_is_read_by_its_key():
    def act(td):
        return torch.ones(td.shape[:-1], dtype=torch.int64)

    policy = Answer(act, ("agents", "observation"), ("agents", "action"))
    key = ("next", "agents", "reward")
    result = evaluated(Agents, policy, num_trajectories=2, reward_keys=key)
    lengths = result.lengths.tolist()
    assert result.returns.tolist() == [sum(1.0 + step for step in range(1, n + 1)) for n in lengths]


def test_a_recurrent_policy_begins_each_episode_anew():
    _, policy = lstm(2)
    alone, several = (evaluated(Coin, policy, num_envs=n) for n in (None, 3))
    assert several.returns.tolist() == alone.returns.tolist()
