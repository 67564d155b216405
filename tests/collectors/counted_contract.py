"""`CollectionContract` for counting envs: no frame is lost, repeated or mixed."""

import pytest

from swath.testing import CollectionContract, Counting, CountingEnv, CountingEnvs, check_counted, marks_of
from swath.testing.checks import valid


class CountedCollectionContract(CollectionContract):
    """Fixtures to override: `counting`, or `make_collector` for another place than this process."""

    @pytest.fixture
    def counting(self):
        return Counting()

    @pytest.fixture
    def make_env(self, counting):
        return Rounds(counting, self.n_envs or 1)

    @pytest.fixture
    def sources(self, make_env, counting):
        """Envs are numbered through, over all workers."""
        if self.n_workers is None:
            return [make_env]
        n_envs = self.n_envs or 1
        return [Rounds(counting, n_envs, worker * n_envs) for worker in range(self.n_workers)]

    @pytest.fixture
    def env_by_hand(self, counting):
        return lambda i: CountingEnv(i, counting)

    def test_no_frame_is_lost_repeated_or_mixed(self, collected, counting):
        for td in collected:
            check_counted(td, counting)
        envs = [int(marks_of(row, counting)[valid(row)][0, 0]) for td in collected for row in td.unsqueeze(1)]
        assert len(set(envs)) == len(envs), f"two rows are of the same env: {envs}"


class Rounds:
    """Builds envs `first` to `first` + n − 1, and begins anew with each collector, since each has as many."""

    def __init__(self, counting, n_envs, first=0):
        self._counting, self._n_envs, self._first = counting, n_envs, first
        self._envs = CountingEnvs(counting, first=first)

    def __call__(self):
        if len(self._envs.made) == self._n_envs:
            self._envs = CountingEnvs(self._counting, first=self._first)
        return self._envs()
