"""The order in which two halves of the envs act, send and receive."""

import torch

from swath.rollout.failures import Failures
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.loop import LoopState, Rules, StepLimit, restart_all
from swath.rollout.overlap import Overlap
from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import BindingOptions
from swath.testing import Counting, CountingEnv, Script

LONG = Counting(script=Script((20,)))


class Noting(EnvListHost):
    """Notes when a step is begun, and when it is completed."""

    def __init__(self, number, notes):
        super().__init__([CountingEnv(2 * number + env, LONG) for env in range(2)])
        self.number, self.notes = number, notes

    def send(self, action):
        self.notes.append(f"send {self.number}")

    def step(self, action, only=None):
        self.notes.append(f"receive {self.number}")
        return super().step(action, only)


def test_the_policy_acts_for_one_half_while_the_envs_of_the_other_step():
    notes = []

    def act(observation):
        notes.append(f"act {int(observation[0, 0]) // 2}")
        return torch.zeros(len(observation), dtype=torch.int64)

    hosts = [Noting(number, notes) for number in range(2)]
    overlap = Overlap([(host, Rules(StepLimit(host.spec), restart_all, Failures())) for host in hosts])
    first, second = (host.reset_all() for host in hosts)
    state = LoopState([torch.cat([*map(torch.from_numpy, pair)]).numpy() for pair in zip(first, second, strict=True)])
    overlap.act_with(lambda leaves, spec: bind(act, spec, leaves, BindingOptions()), state.observation)
    notes.clear()
    steps = [*overlap.steps(state, 3, bool, randomly=False)]
    begins = ["act 0", "send 0", "act 1", "send 1"]
    turns = ["receive 0", "act 0", "send 0", "receive 1", "act 1", "send 1"]
    assert notes == [*begins, *turns, *turns, "receive 0", "receive 1"]
    assert [step.next_observation[0][:, 2].tolist() for step in steps] == [[t] * 4 for t in (1, 2, 3)]
    assert state.observation is steps[-1].next_observation
    assert steps[1].observation is steps[0].next_observation
