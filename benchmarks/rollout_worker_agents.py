"""`RolloutWorker.sample()` with many agents, against RLlib's: what the sampling itself costs.

    python benchmarks/rollout_worker_agents.py [--quick]

25 agents in each of 4 envs, 3 policies; envs and policies do next to nothing (see many_agents.py). Contenders take
turns (see rounds.py). Ends with 1 if the target is missed.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

from figures import ended
from many_agents import AGENTS, ENVS, POLICIES, worker_of
from peers import RLLIB, python_of
from policies import quiet_threads
from rounds import CPU, Peer, Target, interleave, reached, show, timed
from swath import AlgorithmConfig, RolloutWorker
from swath.rollout_workers import MultiAgentEnv, Policy

OURS, THEIRS = "RolloutWorker", "RLlib's RolloutWorker"


def main() -> int:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = (5, 0.5) if parser.parse_args().quick else (21, 1.0)
    quiet_threads()
    peer = Peer(python_of(RLLIB), "peer_rllib_agents.py")
    library = SimpleNamespace(MultiAgentEnv=MultiAgentEnv, Policy=Policy, RolloutWorker=RolloutWorker)
    library.config = AlgorithmConfig()
    worker = worker_of(library)
    contenders = {OURS: timed(lambda: worker.sample().agent_steps()), THEIRS: peer}
    rates = interleave(contenders, rounds, seconds)
    peer.close()
    title = f"{AGENTS} agents in each of {ENVS} envs, {POLICIES} policies, {'CPU' if CPU else 'wall'} seconds"
    show(title, rates, "transitions/s")
    return ended([reached(rates, [Target(OURS, THEIRS, 5)])])


if __name__ == "__main__":
    raise SystemExit(main())
