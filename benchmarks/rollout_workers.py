"""`RolloutWorker.sample()` with values and advantages, against RLlib's workers and against `Collector`.

    python benchmarks/rollout_workers.py [--quick]

CartPole-v1, networks of 4-256-256-2, one torch thread; contenders take turns (see rounds.py). Of RLlib's, the
`RolloutWorker` of its old stack does the same as ours, with a value network of the same sizes; its env runners answer
episodes without values and advantages, `Collector` batches without them. Where several agents act in an env, it is also
counted how often a policy is asked per step of all envs. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import ExitStack
from typing import Any

import gymnasium

from figures import ended, verdict
from peers import RLLIB, python_of
from policies import quiet_threads
from rounds import CPU, Peer, Run, Target, interleave, reached, show, timed
from swath import AlgorithmConfig, Collector, RolloutWorker
from swath.learn import heads, networks
from swath.learn.policy import NetworkPolicy
from swath.rollout_workers import DefaultCallbacks, PPOTorchPolicy, make_multi_agent

STEPS = 200
AGENTS, POLICIES, ENVS, LOOKS = 25, 3, 4, 5
WORKER, GENERAL, COLLECTOR = "RolloutWorker", "the same, a step callback", "Collector"
PEER, RUNNER, AGENTS_RUNNER = "RLlib's RolloutWorker", "RLlib's SingleAgentEnvRunner", "RLlib's MultiAgentEnvRunner"


class AtEachStep(DefaultCallbacks):
    """Takes the general path."""

    def on_episode_step(self, **kwargs) -> None:
        """Nothing."""


def config_for(envs: int) -> AlgorithmConfig:
    """As what RLlib is told."""
    return (
        AlgorithmConfig()
        .env_runners(num_envs_per_env_runner=envs, rollout_fragment_length=STEPS)
        .training(lambda_=0.95)
    )


def sampling(worker: RolloutWorker) -> Run:
    """Rows of batches that are complete with advantages; with several agents, of all of them."""

    def draw() -> int:
        worker.get_metrics()
        batch = worker.sample()
        return batch.agent_steps()

    return timed(draw)


def one_agent(envs: int, **settings: Any) -> RolloutWorker:
    """Of CartPole."""
    return RolloutWorker(
        env_creator=lambda _: gymnasium.make("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=config_for(envs).update_from_dict(settings),
    )


def many_agents() -> RolloutWorker:
    """Of copies of CartPole."""
    return RolloutWorker(
        env_creator=make_multi_agent("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=config_for(ENVS)
        .environment(env_config={"num_agents": AGENTS})
        .multi_agent(
            policies={str(number) for number in range(POLICIES)},
            policy_mapping_fn=lambda agent, *_, **__: str(agent % POLICIES),
        ),
    )


def collecting(envs: int) -> Run:
    """Frames."""
    actor = NetworkPolicy(networks.MLP((4, 256, 256, 2)), heads.Categorical(2))
    batches = iter(Collector("CartPole-v1", actor, envs_per_worker=envs, frames_per_batch=envs * STEPS))
    return timed(lambda: next(batches).numel())


def peer(stack: ExitStack, script: str, *args: object) -> Peer:
    """A contender of RLlib's, ended with the stack."""
    child = Peer(python_of(RLLIB), script, *args)
    stack.callback(child.close)
    return child


def one_agent_passes(envs: int, rounds: int, seconds: float) -> bool:
    """Print what is reached with so many sub-envs; with one there is no target."""
    with ExitStack() as stack:
        contenders: dict[str, Run] = {
            WORKER: sampling(one_agent(envs)),
            GENERAL: sampling(one_agent(envs, callbacks_class=AtEachStep)),
            COLLECTOR: collecting(envs),
            PEER: peer(stack, "peer_rllib_worker.py", "worker", envs, STEPS),
            RUNNER: peer(stack, "peer_rllib_worker.py", "runner", envs, STEPS),
        }
        rates = interleave(contenders, rounds, seconds)
    show(f"CartPole-v1, sub-envs: {envs}, {STEPS} steps each a batch", rates, "frames/s")
    least = {PEER: 5.0, RUNNER: 3.0, COLLECTOR: 0.5} if envs > 1 else {PEER: None, RUNNER: None, COLLECTOR: None}
    return reached(rates, [Target(WORKER, reference, wanted) for reference, wanted in least.items()])


def many_agents_pass(rounds: int, seconds: float) -> bool:
    """Print what is reached with agents of several policies."""
    with ExitStack() as stack:
        contenders: dict[str, Run] = {
            WORKER: sampling(many_agents()),
            AGENTS_RUNNER: peer(stack, "peer_rllib_agents_runner.py", AGENTS, POLICIES, ENVS, STEPS),
        }
        rates = interleave(contenders, rounds, seconds)
    show(f"{AGENTS} agents in CartPole-v1, policies: {POLICIES}, sub-envs: {ENVS}", rates, "agent steps/s")
    return reached(rates, [Target(WORKER, AGENTS_RUNNER, 5.0)])


def asked_once() -> bool:
    """Print how often policies are asked per step of all envs; a policy none of whose agents act is not asked."""
    worker, steps, asked = many_agents(), 0, Counter[str]()
    for name, policy in worker.policy_map.items():
        policy.model.register_forward_pre_hook(lambda *_, name=name: asked.update([name]))
    for _ in range(LOOKS):
        steps += worker.sample().env_steps() // ENVS
    most, fewest = max(asked.values()) / steps, min(asked.values()) / steps
    return verdict("calls per policy and step, at most", most, ".3f", least=0.5, most=1, note=f"at least {fewest:.3f}")


def main() -> int:
    """Measure one agent at 1, 8 and 16 sub-envs, then many."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = (5, 0.5) if parser.parse_args().quick else (15, 1.0)
    quiet_threads()
    print(f"one torch thread, {rounds} rounds of {seconds} {'CPU' if CPU else 'wall'} seconds each")
    passed = [one_agent_passes(envs, rounds, seconds) for envs in (1, 8, 16)]
    passed += [many_agents_pass(rounds, seconds), asked_once()]
    return ended(passed)


if __name__ == "__main__":
    raise SystemExit(main())
