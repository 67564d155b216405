"""Lose a node of a Ray cluster while its workers collect, and add another: all batches have the promised size.

python examples/ray_nodes.py [--per-node 2]      # needs swath[ray]; it starts the nodes on this machine

    head: the driver        node 1: workers        node 2: workers, lost ─▶ node 3: their next lives
"""

import argparse
from collections.abc import Callable
from typing import Any

import ray
from ray.cluster_utils import Cluster

from swath import RayCollector

FRAMES = 200


def report(event: str, collector: RayCollector, batches: int) -> None:
    """Print an event and the collector's numbers as one line."""
    stats = collector.stats()
    facts = ", ".join(
        f"{name} {stats[name]}" for name in ("workers_alive", "restarts", "fragments_lost", "workers_lost")
    )
    print(f"{event}: {batches} batches of {FRAMES} frames; {facts}", flush=True)


def draw(collector: RayCollector, is_enough: Callable[[dict[str, Any]], bool]) -> int:
    """Draw batches until the stats are as wanted, and return how many; each has its promised size."""
    batches = 0
    while not batches or not is_enough(collector.stats()):
        batch = collector.next()
        assert batch.numel() == FRAMES
        batches += 1
    return batches


def main() -> None:
    """Lose a node and add another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-node", type=int, default=2)
    per_node = parser.parse_args().per_node
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=per_node) for _ in range(2)]
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    workers = 2 * per_node
    with RayCollector(
        "CartPole-v1", frames_per_batch=FRAMES, num_collectors=workers, remote_configs={"num_cpus": 1}
    ) as collector:
        report("three nodes", collector, draw(collector, lambda stats: stats["batches"] >= 20))

        cluster.remove_node(nodes[1], allow_graceful=False)
        batches = draw(collector, lambda stats: stats["workers_alive"] == per_node)
        batches += draw(collector, lambda stats: stats["restarts"] == per_node)
        report("a node is lost", collector, batches)  # the other workers collect; the next lives wait for room

        cluster.add_node(num_cpus=per_node)
        report("another node joined", collector, draw(collector, lambda stats: stats["workers_alive"] == workers))
        print(f"{collector.stats()['frames']} frames were delivered, {collector!r}")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
