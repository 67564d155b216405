"""Several agents: the policies that act for them, the order of rows, what policies and callbacks see, failures.

And all rows compared with a sampler that goes from dict to dict in plain loops.
"""

import gc
import weakref

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import TWO, Agents, Counter, Troupe, by_parity

from mock_envs import (
    BasicMultiAgent,
    EarlyDoneMultiAgent,
    FlexAgentsMultiAgent,
    MultiAgentCartPole,
    RandomMultiAgentEnv,
    RoundRobinMultiAgent,
    SometimesZeroAgentsMultiAgent,
)
from swath.rollout_workers import DefaultCallbacks, MultiAgentBatch, MultiAgentEnv, PPOTorchPolicy, SampleBatch


def test_each_policy_is_asked_once_per_step_for_all_its_agents_in_all_envs_and_only_if_one_is_due():
    troupe = Troupe(lambda: BasicMultiAgent(5), 2, TWO, by_parity, rollout_fragment_length=50)
    troupe.get_policy("p1").num_grad_updates = 7
    batch = troupe.sample()
    assert isinstance(batch, MultiAgentBatch)
    assert (batch.env_steps(), batch.agent_steps()) == (100, 500)
    for pid, agents, updates in (("p0", (0, 2, 4), 0), ("p1", (1, 3), 7)):
        assert [obs.shape for obs in troupe.policy_map[pid].asked] == [(2 * len(agents), 2)] * 50
        assert batch[pid]["t"].tolist() == list(range(25)) * 4 * len(agents)
        assert batch[pid]["agent_index"].tolist() == [agent for _ in range(4) for agent in agents for _ in range(25)]
        assert batch[pid].num_grad_updates == updates
    troupe = Troupe(lambda: SometimesZeroAgentsMultiAgent(2), 1, TWO, by_parity, rollout_fragment_length=60)
    troupe.sample()
    assert all(len(policy.asked) < 60 for policy in troupe.policy_map.values())


def test_every_observation_is_pushed_into_the_filter_of_its_policy_once():
    settings = {"observation_filter": "MeanStdFilter", "rollout_fragment_length": 12}
    troupe = Troupe(lambda: Agents(3), 2, TWO, by_parity, **settings)
    batch = troupe.sample()
    # 12 steps and three resets of two envs; the observations of ends are pushed, too
    for pid, agents in (("p0", 2), ("p1", 1)):
        assert troupe.filters[pid].running_stats.num_pushes == (12 + 3) * 2 * agents
    assert abs(batch["p0"]["obs"]).max() < 5
    assert batch["p0"]["new_obs"][:4].tolist() == batch["p0"]["obs"][1:5].tolist()


def test_states_may_be_nested():
    states = []

    class Odd(Counter):
        def get_initial_state(self):
            return [{"some": {"here": np.zeros(3)}}]

        def compute_actions(self, obs_batch, state_batches=None, **_):
            states.append(state_batches[0])
            n = len(obs_batch)
            return np.zeros(n, int), [{"some": {"here": np.ones((n, 3)) * len(states)}}], {}

    def come_late(env, answer):
        answer[0] = answer[0] if env.at else {0: answer[0][0]}

    troupe = Troupe(lambda: Agents(hook=come_late), policies={"default_policy": Odd}, rollout_fragment_length=4)
    batch = troupe.sample()
    assert [state["some"]["here"][:, 0].tolist() for state in states] == [[0], [1, 0], [2, 2], [3, 3]]
    assert batch["state_out_0"]["some"]["here"][:, 0].tolist() == [1, 2, 3, 4, 2, 3, 4]
    assert batch["state_in_0"]["some"]["here"][:, 0].tolist() == [0, 1, 2, 3, 0, 2, 3]


PLAN = (
    ([1], {0: 1.0, 1: 32.0}, []),  # 0 acted and is not seen; 1 was never seen, what it is paid is part of nothing
    ([], {0: 2.0, 1: 4.0}, []),
    ([0], {0: 8.0}, []),
    ([], {1: 16.0}, [1]),  # 1 ends unseen
    ([], {0: 64.0, 1: 128.0}, []),
)
"""Who is seen, what is paid, who ends, step by step."""


def as_planned(env, answer):
    observed, rewards, ended = PLAN[env.at - 1] if env.at else ([0], {}, [])
    answer[0] = {agent: answer[0][agent] for agent in observed}
    answer[1] = rewards
    answer[2].update(dict.fromkeys(ended, True))


CLIPPED = [(None, [11.0, 64.0, 20.0]), (True, [1.0, 1.0, 1.0]), (20.0, [11.0, 20.0, 20.0])]


@pytest.mark.parametrize(("clip", "rewards"), CLIPPED)
def test_rewards_add_up_until_the_agents_next_observation_or_end_and_sums_are_clipped(clip, rewards):
    troupe = Troupe(lambda: Agents(hook=as_planned), rollout_fragment_length=5, clip_rewards=clip)
    batch = troupe.sample()
    assert batch["rewards"].tolist() == rewards
    assert batch["t"].tolist() == [2, 4, 3]
    assert batch["obs"][:, 0].tolist() == [0, 3, 1]
    assert batch["new_obs"][:, 0].tolist() == [3, 3, 1]  # the latest observation stands in for one that never came
    assert batch["terminateds"].tolist() == [False, True, True]
    (metrics,) = troupe.get_metrics()
    assert (metrics.episode_reward, metrics.episode_reward_raw, metrics.episode_length) == (sum(rewards), 95.0, 5)
    first, second = ((0, "default_policy"), (1, "default_policy"))
    assert metrics.agent_rewards == {first: rewards[0] + rewards[1], second: rewards[2]}


def test_the_mapping_is_asked_once_per_agent_and_episode_and_holds_for_it():
    calls = []

    def mapping(agent, episode):
        calls.append((agent, episode.episode_id if episode else None))
        return "p0"

    troupe = Troupe(lambda: BasicMultiAgent(2), 1, TWO, mapping, rollout_fragment_length=30)
    calls.clear()
    batch = troupe.sample()
    first, second = dict.fromkeys(batch["p0"]["eps_id"].tolist())
    assert calls == [(0, first), (1, first), (0, second), (1, second)]
    troupe.set_policy_mapping_fn(lambda agent, episode, **kwargs: "p1")
    batch = troupe.sample()
    assert (batch["p0"].count, batch["p1"].count) == (40, 20)
    assert batch["p1"]["t"].tolist() == [*range(10)] * 2


def test_agents_of_a_policy_that_was_removed_go_on_with_it_until_their_episode_ends():
    troupe = Troupe(lambda: BasicMultiAgent(2), 1, TWO, by_parity, rollout_fragment_length=20)
    troupe.sample()
    removed = troupe.policy_map["p1"]
    troupe.remove_policy(policy_id="p1", policy_mapping_fn=lambda agent, episode, **kwargs: "p0")
    batch = troupe.sample()
    assert (batch["p0"].count, batch["p1"].count) == (35, 5)
    assert batch["p1"]["t"].tolist() == [20, 21, 22, 23, 24]
    assert len(removed.asked) == 25
    batch = troupe.sample()
    assert list(batch.policy_batches) == ["p0"]
    reference = weakref.ref(removed)
    del removed
    gc.collect()
    assert reference() is None


def test_a_policy_that_is_added_under_an_id_to_which_agents_are_bound_ends_their_episodes_and_their_steps_count():
    steps_left = [2 * 30]

    def stop(**kwargs):
        steps_left[0] -= 1
        if steps_left[0] == 0:
            raise OSError("no room")

    config = {"batch_mode": "complete_episodes", "callback_functions": {"on_episode_step": stop}}
    troupe = Troupe(lambda: BasicMultiAgent(2), 2, TWO, by_parity, rollout_fragment_length=20, **config)
    troupe.sample()
    with pytest.raises(OSError, match="no room"):
        troupe.sample()
    troupe.remove_policy(policy_id="p1")
    troupe.add_policy("p1", Counter)
    batch = troupe.sample()
    assert troupe.counters["env_steps_discarded"] == 2 * 5
    assert (batch.env_steps(), batch["p0"]["t"].tolist()) == (50, [*range(25)] * 2)


def runs(column):
    return np.flatnonzero(np.diff(column, prepend=column[0] - 1))


def test_agents_in_turn_have_the_index_of_the_step_that_closed_each_transition():
    batch = Troupe(lambda: RoundRobinMultiAgent(5, True), rollout_fragment_length=3).sample()  # nothing is closed yet
    assert (type(batch), batch.policy_batches, batch.env_steps()) == (MultiAgentBatch, {}, 3)
    batch = Troupe(lambda: RoundRobinMultiAgent(5, True), rollout_fragment_length=50).sample()
    assert isinstance(batch, SampleBatch)
    assert (batch.count, batch.env_steps()) == (42, 50)
    assert batch["t"][:10].tolist() == [4, 9, 14, 19, 24, 5, 10, 15, 20, 25]


def test_chunks_are_of_one_agent_episode_call_and_version_and_their_numbers_never_repeat():
    troupe = Troupe(lambda: RoundRobinMultiAgent(2), rollout_fragment_length=4)
    earlier = set()
    for version, chunks in ((1, [2, 1]), (1, [2, 2]), (2, [1, 1, 1])):
        troupe.set_weights({}, weights_seq_no=version)
        batch = troupe.sample()
        starts = runs(batch["unroll_id"])
        assert np.diff(starts, append=batch.count).tolist() == chunks
        numbers = set(batch["unroll_id"].tolist())
        assert not numbers & earlier
        earlier |= numbers
    # agent 1 had acted before the call
    assert batch["agent_index"].tolist() == [0, 1, 1]
    assert batch["policy_version"].tolist() == [2, 1, 2]


@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_agent_steps_can_count(mode):
    settings = {"count_steps_by": "agent_steps", "rollout_fragment_length": 33, "batch_mode": mode}
    troupe = Troupe(lambda: BasicMultiAgent(4), 2, TWO, by_parity, **settings)
    steps = {"truncate_episodes": 18, "complete_episodes": 50}[mode]
    for _ in range(3):
        batch = troupe.sample()
        assert (batch.env_steps(), batch.agent_steps()) == (steps, steps * 4)


class Noting(Counter):
    """Keeps what it was asked to post-process; adds a column."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen = []

    def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
        self.seen.append((sample_batch, other_agent_batches, episode))
        sample_batch["mine"] = np.full(sample_batch.count, len(self.seen))
        return sample_batch


def test_an_overridden_method_gets_each_chunk_the_other_agents_chunks_and_the_episode():
    troupe = Troupe(lambda: BasicMultiAgent(3), 1, {"p0": Noting, "p1": Noting}, by_parity, rollout_fragment_length=30)
    batch = troupe.sample()
    p0, p1 = troupe.policy_map.values()
    assert [(chunk["agent_index"][0], chunk.count) for chunk, _, _ in p0.seen] == [(0, 25), (2, 25), (0, 5), (2, 5)]
    assert [(chunk["agent_index"][0], chunk.count) for chunk, _, _ in p1.seen] == [(1, 25), (1, 5)]
    chunk, others, episode = p0.seen[2]
    assert {agent: (pid, policy, other.count) for agent, (pid, policy, other) in others.items()} == {
        1: ("p1", p1, 5),
        2: ("p0", p0, 5),
    }
    assert (episode.episode_id, episode.policy_for(1)) == (chunk["eps_id"][0], "p1")
    assert batch["p0"]["mine"].tolist() == [1] * 25 + [2] * 25 + [3] * 5 + [4] * 5


def test_a_chunk_may_become_longer_or_shorter_and_must_be_a_batch():
    class Odd(Counter):
        def postprocess_trajectory(self, sample_batch, other_agent_batches=None, episode=None):
            agent = sample_batch["agent_index"][0]
            return {0: sample_batch[:2], 1: sample_batch.concat(sample_batch), 2: None}[agent]

    config = {"policies": {"default_policy": Odd}, "rollout_fragment_length": 5}
    batch = Troupe(lambda: BasicMultiAgent(2), **config).sample()
    assert (batch["agent_index"].tolist(), batch.env_steps()) == ([0] * 2 + [1] * 10, 5)
    with pytest.raises(TypeError, match="postprocess_trajectory returned None"):
        Troupe(lambda: BasicMultiAgent(3), **config).sample()


def test_callbacks_see_each_chunk_with_all_originals_its_own_too():
    calls = []

    class Looking(DefaultCallbacks):
        def on_postprocess_trajectory(
            self, *, worker, episode, agent_id, policy_id, policies, postprocessed_batch, original_batches, **kwargs
        ):
            calls.append((agent_id, policy_id, sorted(original_batches), episode.episode_id))
            assert (policies, episode.last_info_for(agent_id)) == (worker.policy_map, {})
            postprocessed_batch["rewards"] = postprocessed_batch["rewards"] * 10

    troupe = Troupe(lambda: BasicMultiAgent(3), 1, TWO, by_parity, Looking(), rollout_fragment_length=4)
    batch = troupe.sample()
    episode = batch["p0"]["eps_id"][0]
    assert calls == [(agent, f"p{agent % 2}", [0, 1, 2], episode) for agent in (0, 2, 1)]
    assert batch["p0"]["rewards"].tolist() == [10.0] * 8


def test_shipped_policies_are_asked_for_values_once_per_call():
    class Asked(PPOTorchPolicy):
        calls = 0

        def compute_values(self, input_dict):
            Asked.calls += 1
            return super().compute_values(input_dict)

    make = lambda: MultiAgentCartPole({"num_agents": 4})
    Troupe(make, 2, {"default_policy": Asked}, rollout_fragment_length=5).sample()
    assert Asked.calls == 1


def test_agents_that_are_not_to_be_trained_are_left_out_but_their_env_steps_count():
    untrained = {1: {"training_enabled": False}}
    tell = lambda env, answer: answer[4].update(untrained)
    batch = Troupe(lambda: Agents(hook=tell), rollout_fragment_length=5).sample()
    assert batch["agent_index"].tolist() == [0] * 5
    untrained[0] = untrained[1]
    troupe = Troupe(lambda: Agents(hook=tell), rollout_fragment_length=5)
    batch = troupe.sample()
    assert isinstance(batch, MultiAgentBatch)
    assert (batch.policy_batches, batch.env_steps()) == ({}, 5)
    assert (troupe.counters["env_steps_sampled"], troupe.counters["agent_steps_sampled"]) == (5, 0)


FAILURES = {
    "step": (ZeroDivisionError, "division by zero", lambda answer: 1 / 0),
    "shape": (ValueError, "returned an observation of shape", lambda answer: answer[0].update({1: np.zeros(3)})),
    "unknown": (KeyError, "gave 'unknown' for agent 9; there are", lambda answer: answer[0].update({9: np.zeros(1)})),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_step_that_breaks_is_raised_and_the_next_call_resumes_with_all_others_untouched(kind):
    error, text, break_ = FAILURES[kind]
    ends = []

    def go_wrong(env, answer):
        if env is troupe.made[1] and (env.episode, env.at) == (0, 3):
            break_(answer)

    functions = {"on_episode_end": lambda *, episode, env_index, **_: ends.append((env_index, episode))}
    config = {"callback_functions": functions, "rollout_fragment_length": 4}
    mapping = lambda agent, episode: "default_policy" if agent in (0, 1) else "unknown"
    troupe = Troupe(lambda: Agents(2, 6, hook=go_wrong), 3, mapping=mapping, **config)
    with pytest.raises(error, match=text) as raised:
        troupe.sample()
    assert "raised by sub-env 1 (last seed None) in step 2 of its episode, counted from 0" in raised.value.__notes__
    batch = troupe.sample()
    assert (batch.count, batch.env_steps()) == (24, 12)
    unbroken, broken = [0, 1, 2, 3] * 2, [0, 1] * 4
    assert batch["obs"].ravel().tolist() == [*unbroken, *broken, *unbroken]
    assert batch["truncateds"][8:16].tolist() == [False, True, False, True, False, False, False, False]
    assert troupe.sample().count == 24
    assert [env.episode for env in troupe.made] == [1, 1, 1]
    faulty, *others = troupe.get_metrics()
    assert (faulty.episode_faulty, faulty.env_index) == (True, 1)
    assert [(metrics.episode_faulty, metrics.episode_length) for metrics in others] == [(False, 6)] * 3
    env, ended = ends[0]
    assert (env, isinstance(ended, error)) == (1, True)


def test_an_episode_in_which_no_agent_acts_is_a_failed_step():
    def hide(env, answer):
        answer[0] = {} if env.episode == 1 else answer[0]

    troupe = Troupe(lambda: Agents(length=3, hook=hide), rollout_fragment_length=3)
    troupe.sample()
    with pytest.raises(ValueError, match="ended after 3 steps in which no agent was observed to act"):
        troupe.sample()
    assert troupe.sample().env_steps() == 3


class Whimsical(MultiAgentEnv):
    """Draws observed, rewarded and ended agents in each step, also agents that were never seen, or have ended."""

    def __init__(self):
        self.agents = list(range(5))
        self.observation_space, self.action_space = gym.spaces.Box(0, 9, (2,), np.float32), gym.spaces.Discrete(2)
        super().__init__()

    def _some(self, probability):
        return [agent for agent in self.agents if self.np_random.random() < probability]

    def _show(self, agents):
        observations = {agent: self.np_random.random(2, np.float32) for agent in agents}
        draw = self.np_random.random
        return observations, {agent: {"told": draw()} for agent in observations if draw() < 0.5}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._show([2, *self._some(0.3)])

    def step(self, action_dict):
        observations, infos = self._show(self._some(0.4))
        rewards = {agent: self.np_random.random() for agent in self._some(0.5)}
        flags = [{agent: bool(self.np_random.random() < 0.3) for agent in self._some(0.2)} for _ in range(2)]
        for by_agent in flags:
            by_agent["__all__"] = bool(self.np_random.random() < 0.04)
        return observations, rewards, *flags, infos


ENVS = {
    "whimsical": Whimsical,
    "basic": lambda: BasicMultiAgent(3),
    "early_done": EarlyDoneMultiAgent,
    "flexible": FlexAgentsMultiAgent,
    "sometimes_none": lambda: SometimesZeroAgentsMultiAgent(4),
    "in_turn": lambda: RoundRobinMultiAgent(3, increment_obs=True),
    "cart_pole": lambda: MultiAgentCartPole({"num_agents": 3}),
    "random": lambda: RandomMultiAgentEnv({"num_agents": 2, "p_terminated": 0.3}),
}
N, F, CALLS = 5, 40, 3
ROW = ("obs", "actions", "prev_actions", "prev_rewards", "agent_id", "agent_index")


def answer(obs):
    return int(np.argmax(obs) % 2)


class Reader(Counter):
    """Answers by what it sees."""

    wanted = ("prev_actions", "prev_rewards", "infos", "env_id", "agent_id")

    def compute_actions(self, obs_batch, state_batches=None, **kwargs):
        return [answer(obs) for obs in obs_batch], [], {}


class Story:
    """An episode, dict by dict."""

    def __init__(self, env, number, seed):
        self.env, self.number = env, number
        self.order, self.last, self.told = [], {}, {}
        self.open, self.before, self.ended, self.t = {}, {}, set(), 0
        raw, infos = env.reset(seed=seed)
        self.due = {agent: self.see(agent, value) for agent, value in raw.items()}
        self.told = {agent: infos.get(agent, {}) for agent in raw}

    def see(self, agent, value):
        space = self.env.get_observation_space(agent)
        one_hot = isinstance(space, gym.spaces.Discrete)
        self.last[agent] = np.eye(space.n, dtype=np.float32)[value] if one_hot else np.asarray(value)
        if agent not in self.order:
            self.order.append(agent)
        return self.last[agent]

    def act(self):
        actions = {agent: answer(value) for agent, value in self.due.items()}
        for agent, value in self.due.items():
            done = self.before.get(agent, (0, 0.0))
            facts = (value, actions[agent], *done, agent, self.order.index(agent))
            self.open[agent] = {**dict(zip(ROW, facts, strict=True)), "rewards": 0.0}
        return actions

    def step(self):
        """The rows that the step closes, and whether the episode is over."""
        raw, rewards, *flags, infos = self.env.step(self.act())
        self.told.update({agent: infos.get(agent, {}) for agent in raw})
        for agent in rewards.keys() & self.open.keys():
            self.open[agent]["rewards"] += rewards[agent]
        ends = {
            agent: tuple(bool(by_agent["__all__"] or by_agent.get(agent, False)) for by_agent in flags)
            for agent in {*raw, *flags[0], *flags[1], *self.open} - {"__all__"}
        }
        present = [agent for agent in raw if agent not in self.ended and (agent in self.order or not any(ends[agent]))]
        observations = {agent: self.see(agent, raw[agent]) for agent in present}
        self.due = {agent: value for agent, value in observations.items() if not any(ends[agent])}
        rows = [self.close(agent, ends[agent]) for agent in list(self.open) if agent in raw or any(ends[agent])]
        self.ended |= {agent for agent, end in ends.items() if any(end) and agent in self.order}
        self.t += 1
        return rows, flags[0]["__all__"] or flags[1]["__all__"]

    def close(self, agent, ends):
        row = self.open.pop(agent)
        self.before[agent] = (row["actions"], row["rewards"])
        row |= {"new_obs": self.last[agent], "t": self.t, "env_id": self.number, "infos": self.told[agent]}
        return {**row, "terminateds": ends[0], "truncateds": ends[1]}


def reference(env, number, seed):
    """F · CALLS steps of an env, as rows by call, each with the number of its episode."""
    calls, episode, story = [[] for _ in range(CALLS)], 0, Story(env, number, seed)
    for clock in range(F * CALLS):
        rows, over = story.step()
        calls[clock // F] += [(episode, row) for row in rows]
        if over:
            episode, story = episode + 1, Story(env, number, None)
    return calls


def in_order(rows):
    return [row for _, row in sorted(rows, key=lambda pair: (pair[0], pair[1]["agent_index"], pair[1]["t"]))]


@pytest.mark.parametrize("name", ENVS)
def test_rows_equal_the_rows_of_plain_loops_by_sub_env_episode_agent_and_time(name):
    expected = [reference(ENVS[name](), number, seed=5 + number) for number in range(N)]
    policies = {"p0": Reader, "p1": Reader}
    troupe = Troupe(ENVS[name], N, policies, by_parity, seed=5, rollout_fragment_length=F)
    n_rows = 0
    for call in range(CALLS):
        batch = troupe.sample()
        assert batch.env_steps() == N * F
        for pid in policies:
            rows = [row for env in expected for row in in_order(env[call]) if by_parity(row["agent_id"], None) == pid]
            n_rows += len(rows)
            if not rows:
                assert pid not in batch.policy_batches
                continue
            columns = batch[pid]
            for column in rows[0]:
                wanted = np.array([row[column] for row in rows], dtype=columns[column].dtype)
                np.testing.assert_array_equal(columns[column], wanted, err_msg=f"{column} of {pid} in call {call}")
            assert columns["obs"].dtype == np.float32
            assert columns["rewards"].dtype == np.float32
            changes = columns["eps_id"][1:] != columns["eps_id"][:-1]
            changes |= columns["agent_index"][1:] != columns["agent_index"][:-1]
            np.testing.assert_array_equal(columns["unroll_id"][1:] != columns["unroll_id"][:-1], changes)
    assert n_rows > 50
