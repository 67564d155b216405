"""Facts as `stats("both")` of collectors gives them."""

ALONE = {
    "frames": 100,
    "batches": 2,
    "policy_version": 3,
    "staleness": 0,
    "restarts": 0,
    "workers_lost": 0,
    "late": 0,
    "fragments_lost": 0,
    "env_errors": 0,
    "batches_dropped": 0,
    "episodes": 0,
    "fps": 25.0,
    "seconds": 4.0,
    "seconds_waiting": 1.0,
    "running": False,
    "worker_0/frames": 100,
    "worker_0/life": 0,
    "worker_0/state": "ready",
    "worker_0/policy_version": 3,
    "worker_0/staleness": 0,
}


def of_worker(worker, **changes):
    facts = {"frames": 50, "life": 0, "state": "up", "policy_version": 2, "staleness": 1, **changes}
    return {f"worker_{worker}/{name}": value for name, value in facts.items()}


def of_fleet(number=2, **changes):
    facts = dict(ALONE)
    for worker in range(number):
        facts |= of_worker(worker)
    return {
        **facts,
        "workers": number,
        "workers_alive": number,
        "staleness": 1,
        "episode_return": 21.5,
        "episode_length": 33.0,
        **changes,
    }


class Collecting:
    """Stands in for a collector: answers `stats`."""

    def __init__(self, facts):
        self.facts, self.asked = facts, 0

    def stats(self, workers):
        assert workers == "both"
        self.asked += 1
        return dict(self.facts)


class Judging:
    """Stands in for an evaluator: answers `stats`."""

    def __init__(self, **result):
        self.result = result

    def stats(self):
        return {"completed": len(self.result), **{f"eval/{name}": value for name, value in self.result.items()}}
