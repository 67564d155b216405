"""Compare two workers with one, and with the two workers of TorchRL and RLlib.

    python benchmarks/collectors.py [--quick]      # needs swath[ray]; the peers' environments are made at first use

CartPole-v1, sampled actions with log-probabilities, a 4-64-64-2 network, one thread per process; each library with the
policy of its users, all on one Ray cluster on this machine. The rate of two collectors at once, in separate processes,
shows what the cores give. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from policies import lean_actor, quiet_threads
from rounds import Peer, Run, Target, begin_ray, compare, drawing, ended, parser, python_of, serve
from swath import Collector, MultiAsyncCollector, MultiSyncCollector, RayCollector

WORKERS, STEPS = 2, 128
SMALL, LARGE = 8, 32
ORDERS = ("sync", "async")
LOCAL, AT_ONCE = "Collector, in this process", "two Collectors on their own, at once"
RAY, PROCESSES, PEER, OTHER = "RayCollector", "Multi collector", "TorchRL's RayCollector", "RLlib's EnvRunnerGroup"


def ours(kind: Callable[..., Any], envs: int, **more: Any) -> Any:
    """Return a collector of ours whose workers each step `envs` envs together."""
    return kind("CartPole-v1", lean_actor(), envs_per_worker=envs, **more)


def at_once(peers: list[Peer]) -> Run:
    """Run processes at the same time and add their rates."""

    def run(seconds: float) -> float:
        for peer in peers:
            peer.begin(seconds)
        return sum(peer.rate() for peer in peers)

    return run


def contenders(envs: int, address: str, stack: ExitStack) -> dict[str, Run]:
    """Return all contenders with so many envs per worker."""
    share = envs * STEPS
    all_shares, one_share = {"frames_per_batch": WORKERS * share}, {"frames_per_batch": share}
    mine = {
        f"{RAY}, sync": ours(RayCollector, envs, sync=True, num_collectors=WORKERS, **all_shares),
        f"{RAY}, async": ours(RayCollector, envs, sync=False, num_collectors=WORKERS, **one_share),
        f"{PROCESSES}, sync": ours(MultiSyncCollector, envs, num_workers=WORKERS, **all_shares),
        f"{PROCESSES}, async": ours(MultiAsyncCollector, envs, num_workers=WORKERS, **one_share),
        LOCAL: ours(Collector, envs, **one_share),
    }
    for collector in mine.values():
        stack.callback(collector.shutdown)
    torchrl, rllib = python_of("torchrl"), python_of("rllib")
    peers = {f"{PEER}, {order}": (torchrl, "peer_torchrl.py", "collect", order) for order in ORDERS}
    others = {name: Peer(*command, envs, STEPS, address) for name, command in peers.items()}
    others[OTHER] = Peer(rllib, "peer_rllib.py", "collect", envs, STEPS, address)
    alone = [Peer(sys.executable, "collectors.py", "--alone", envs) for _ in range(WORKERS)]
    for peer in (*others.values(), *alone):
        stack.callback(peer.close)
    return {name: drawing(collector) for name, collector in mine.items()} | others | {AT_ONCE: at_once(alone)}


def targets(envs: int) -> list[Target]:
    """Return the targets with so many envs per worker."""
    found = [Target(AT_ONCE, LOCAL)]
    for order in ORDERS:
        found.append(Target(f"{RAY}, {order}", f"{PEER}, {order}", 16 if envs == SMALL else 12))
        if envs == SMALL:
            found.append(Target(f"{RAY}, {order}", OTHER, 9))
            found.append(Target(f"{RAY}, {order}", LOCAL, 1.7))
            found.append(Target(f"{PROCESSES}, {order}", LOCAL, 1.8))
    return found


def measure(envs: int, address: str, rounds: int, seconds: float) -> bool:
    """Print the tables of one size, and return whether all its targets are reached."""
    title = f"{WORKERS} workers with {envs} envs each, {STEPS} steps"
    with ExitStack() as stack:
        return compare(title, contenders(envs, address, stack), targets(envs), rounds, seconds)


def main() -> int:
    """Measure both sizes; with `--alone ENVS`, run one collector in this process."""
    command_line = parser(__doc__)
    command_line.add_argument("--alone", type=int, help="serve rates of a Collector of so many envs")
    options = command_line.parse_args()
    quiet_threads()
    if options.alone:
        with ours(Collector, options.alone, frames_per_batch=options.alone * STEPS) as collector:
            serve(drawing(collector))
        return 0
    rounds, seconds = ({SMALL: 3, LARGE: 3}, 1.0) if options.quick else ({SMALL: 7, LARGE: 3}, 2.0)
    address = begin_ray()
    print(f"one thread per process, rounds of {seconds:g} s")
    return ended([measure(envs, address, many, seconds) for envs, many in rounds.items()])


if __name__ == "__main__":
    sys.exit(main())
