"""TorchRL's envs through the one loop; skipped where torchrl is not installed."""

import pytest
import torch
from tensordict import NonTensorData, TensorDict
from tensordict.nn import TensorDictModuleBase

pytest.importorskip("torchrl")

from torchrl.data import Bounded, Categorical, Composite, NonTensor, Unbounded
from torchrl.envs import (
    Compose,
    EnvBase,
    ObservationNorm,
    RewardSum,
    SerialEnv,
    TransformedEnv,
)

from swath import Collector
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.torchrl import Fitting


class Clock(EnvBase):
    """Tells how many steps were made, and ends after `length` of them; fails in the steps named."""

    def __init__(self, length=3, batch=(), fails=(), *, reuses=False, word=False):
        super().__init__(batch_size=torch.Size(batch))
        flag = Categorical(2, dtype=torch.bool, shape=(*batch, 1))
        self.observation_spec = Composite(clock=Unbounded((*batch, 1)), shape=batch)
        if word:
            self.observation_spec["word"] = NonTensor(shape=batch)
        self.action_spec = Bounded(-1, 1, (*batch, 1))
        self.reward_spec = Unbounded((*batch, 1))
        self.done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone(), shape=batch)
        self.length, self.fails, self.word = length, set(fails), word
        self.clock = torch.zeros(*batch, 1)
        self.reuses, self.seeds, self.made = reuses, [], 0

    def _set_seed(self, seed):
        self.seeds.append(seed)

    def _words(self):
        return {"word": NonTensorData(str(int(self.clock.max())))} if self.word else {}

    def _reset(self, tensordict=None, **_):
        again = None if tensordict is None else tensordict.get("_reset", None)
        self.clock = torch.zeros_like(self.clock) if again is None else self.clock.masked_fill(again, 0)
        return TensorDict({"clock": self.clock.clone(), **self._words()}, self.batch_size)

    def _step(self, tensordict):
        self.made += 1
        if self.made in self.fails:
            raise ArithmeticError("the clock stopped")
        if self.reuses:
            self.clock += 1
        else:
            self.clock = self.clock + 1
        over = self.clock >= self.length
        entries = {
            "clock": self.clock,
            "reward": tensordict["action"] * 0 + 1,
            "done": over,
            "terminated": over.clone(),
        }
        return TensorDict({**entries, **self._words()}, self.batch_size)


def still(td):
    return td.set("action", torch.zeros(*td.batch_size, 1))


def host_of(env, copies=None, **fitting):
    return build(Source(env, copies=copies), Fitting(**fitting))


def drawn(env, policy=still, frames=8, **options):
    def act(tensordict):
        return policy(tensordict)

    with Collector(env, act if policy is still else policy, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def test_an_env_that_raises_leaves_by_the_transition_and_can_be_built_anew():
    host = host_of(lambda: Clock(fails=[1], batch=(2,)))
    moved = host.step([still(host.reset_all()[0])])
    assert [env for env, _ in moved.failed] == [0, 1]
    assert host.rebuild()[0]["clock"].flatten().tolist() == [0, 0]


def test_batches_of_an_env_that_uses_its_memory_again_are_not_overwritten():
    with Collector(lambda: Clock(length=100, reuses=True), act_still, frames_per_batch=8) as collector:
        batches = iter(collector)
        first, second = next(batches), next(batches)
    assert first["next", "clock"].flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert second["next", "clock"].flatten().tolist() == [9, 10, 11, 12, 13, 14, 15, 16]


def act_still(tensordict):
    return still(tensordict)


@pytest.mark.parametrize("env", [lambda: Clock(100), lambda: SerialEnv(2, lambda: Clock(100))])
def test_a_limit_of_steps_truncates_and_counts(env):
    batch = drawn(env, frames=8, max_frames_per_traj=2)
    assert batch["step_count"].unique().tolist() == [0, 1]
    assert torch.equal(batch["next", "truncated"], batch["next", "step_count"] == 2)
    assert not batch["next", "terminated"].any()


def test_envs_per_worker_makes_a_batch_of_copies():
    assert drawn(Clock, envs_per_worker=2).batch_size == (2, 4)
    assert drawn(Clock(), envs_per_worker=2).batch_size == (2, 4)
    with pytest.raises(ValueError, match="batched already"):
        drawn(lambda: Clock(batch=(2,)), envs_per_worker=2)


def test_random_actions_come_from_the_spec_and_zeros_stand_for_what_the_policy_would_write():
    class Valued(TensorDictModuleBase):
        in_keys, out_keys = ["clock"], ["action", "value"]

        def forward(self, tensordict):
            return still(tensordict).set("value", tensordict["clock"] + 5)

    with Collector(Clock, Valued(), frames_per_batch=4, init_random_frames=4) as collector:
        batches = iter(collector)
        first, second = next(batches), next(batches)
    assert first["action"].any()
    assert not first["value"].any()
    assert not second["action"].any()
    assert second["value"].flatten().tolist() == [6, 7, 5, 6]


def test_the_state_of_transforms_is_saved_and_restored():
    def normed(loc):
        return TransformedEnv(Clock(), Compose(RewardSum(), ObservationNorm(loc, 1.0, in_keys=["clock"])))

    with Collector(lambda: normed(7.0), act_still, frames_per_batch=4) as first:
        saved = first.state_dict()
        assert first.getattr_env("transform[1].loc") == 7
    with Collector(lambda: normed(0.0), act_still, frames_per_batch=4) as second:
        second.load_state_dict(saved)
        assert next(iter(second))["clock"].flatten().tolist() == [7, 8, 9, 7]
