"""Compare `RolloutWorker.sample()` with values and advantages with RLlib's workers and with `Collector`.

    python benchmarks/rollout_workers.py [--quick]

CartPole-v1, networks of 4-256-256-2, one torch thread. RLlib's `RolloutWorker` does the same as ours, with a value
network of the same sizes; its env runners return episodes without values and advantages, `Collector` batches without
them. With several agents, it is also counted how often a policy is called per step of all envs. Ends with 1 if a target
is missed.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import Any

import gymnasium

from policies import quiet_threads
from rounds import CPU, Peer, Run, Target, compare, drawing, ended, parser, python_of, timed, verdict
from swath import AlgorithmConfig, Collector, RolloutWorker
from swath.learn import heads, networks
from swath.learn.policy import NetworkPolicy
from swath.rollout_workers import PPOTorchPolicy, make_multi_agent

STEPS = 200
AGENTS, POLICIES, ENVS, CALLS = 25, 3, 4, 5
WORKER, COLLECTOR = "RolloutWorker", "Collector"
PEER, RUNNER, AGENTS_RUNNER = "RLlib's RolloutWorker", "RLlib's SingleAgentEnvRunner", "RLlib's MultiAgentEnvRunner"
TARGETS = {PEER: 10.0, RUNNER: 3.0, COLLECTOR: 0.6}


def worker(env: Any, envs: int, **settings: Any) -> RolloutWorker:
    """Return a worker with the settings of RLlib's."""
    config = AlgorithmConfig().env_runners(num_envs_per_env_runner=envs, rollout_fragment_length=STEPS)
    config = config.training(lambda_=0.95).update_from_dict(settings)
    return RolloutWorker(env_creator=env, default_policy_class=PPOTorchPolicy, config=config)


def one_agent(envs: int) -> RolloutWorker:
    """Return a worker of CartPole."""
    return worker(lambda _: gymnasium.make("CartPole-v1"), envs)


def several_agents() -> RolloutWorker:
    """Return a worker of copies of CartPole."""
    return worker(
        make_multi_agent("CartPole-v1"),
        ENVS,
        env_config={"num_agents": AGENTS},
        policies={str(number) for number in range(POLICIES)},
        policy_mapping_fn=lambda agent, *_, **__: str(agent % POLICIES),
    )


def sampling(worker: RolloutWorker) -> Run:
    """Count the rows, with advantages, of all agents."""

    def draw() -> int:
        worker.get_metrics()
        return worker.sample().agent_steps()

    return timed(draw)


def collecting(envs: int) -> Run:
    """Count frames of a collector."""
    actor = NetworkPolicy(networks.MLP((4, 256, 256, 2)), heads.Categorical(2))
    return drawing(Collector("CartPole-v1", actor, envs_per_worker=envs, frames_per_batch=envs * STEPS))


def peer(stack: ExitStack, *args: object) -> Peer:
    """Return a contender of RLlib's that ends with the stack."""
    contender = Peer(python_of("rllib"), "peer_rllib.py", *args)
    stack.callback(contender.close)
    return contender


def one_agent_passes(envs: int, rounds: int, seconds: float) -> bool:
    """Compare with so many sub-envs, and return whether the targets are reached; one sub-env has none."""
    with ExitStack() as stack:
        contenders: dict[str, Run] = {
            WORKER: sampling(one_agent(envs)),
            COLLECTOR: collecting(envs),
            PEER: peer(stack, "worker", envs, STEPS),
            RUNNER: peer(stack, "runner", envs, STEPS),
        }
        targets = [Target(WORKER, name, minimum if envs > 1 else None) for name, minimum in TARGETS.items()]
        title = f"CartPole-v1, sub-envs: {envs}, {STEPS} steps each a batch"
        return compare(title, contenders, targets, rounds, seconds)


def several_agents_pass(rounds: int, seconds: float) -> bool:
    """Compare with agents of several policies, and return whether the target is reached."""
    with ExitStack() as stack:
        contenders: dict[str, Run] = {
            WORKER: sampling(several_agents()),
            AGENTS_RUNNER: peer(stack, "agents", AGENTS, POLICIES, ENVS, STEPS),
        }
        title = f"{AGENTS} agents in CartPole-v1, policies: {POLICIES}, sub-envs: {ENVS}"
        return compare(title, contenders, [Target(WORKER, AGENTS_RUNNER, 5)], rounds, seconds, "agent steps/s")


def called_once() -> bool:
    """Count calls of policies per step of all envs, and return whether they are few; idle policies are not called."""
    worker, steps, calls = several_agents(), 0, Counter[str]()
    for name, policy in worker.policy_map.items():
        policy.model.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    for _ in range(CALLS):
        steps += worker.sample().env_steps() // ENVS
    most_calls, fewest_calls = max(calls.values()) / steps, min(calls.values()) / steps
    return verdict(
        "calls per policy and step, at most",
        most_calls,
        ".3f",
        minimum=0.5,
        maximum=1,
        note=f"at least {fewest_calls:.3f}",
    )


def main() -> int:
    """Measure one agent at 1, 8 and 16 sub-envs, then many."""
    rounds, seconds = (5, 0.5) if parser(__doc__).parse_args().quick else (15, 1.0)
    quiet_threads()
    print(f"one torch thread, {rounds} rounds of {seconds} {'CPU' if CPU else 'wall'} seconds each")
    passed = [one_agent_passes(envs, rounds, seconds) for envs in (1, 8, 16)]
    return ended([*passed, several_agents_pass(rounds, seconds), called_once()])


if __name__ == "__main__":
    raise SystemExit(main())
