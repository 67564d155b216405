"""The backend contract as users run it: what a bad backend does shows itself, a forgotten fixture says so."""

import swath.testing.backend_contract  # noqa: F401  pytester forgets modules afterwards, and torch cannot be loaded twice

pytest_plugins = ["pytester"]

MY_TESTS = """
import pytest
from swath.testing import BackendContract
from swath.workers.inline import InlineBackend


class NewestFirst(InlineBackend):
    def call(self, handle, method, *args):
        ticket = super().call(handle, method, *args)
        self._queue.appendleft(self._queue.pop())
        return ticket


class SharesMemory(InlineBackend):
    def share(self, value):
        shared = super().share(value)
        shared.open = lambda: value
        return shared


class Here(BackendContract):
    concurrent = False
    own_process = False


class TestNewestFirst(Here):
    @pytest.fixture
    def make_backend(self):
        return NewestFirst


class TestSharesMemory(Here):
    @pytest.fixture
    def make_backend(self):
        return SharesMemory


class TestForgotten(Here):
    pass
"""


def test_bad_backends_are_noticed_and_a_forgotten_fixture_says_what_to_override(pytester):
    pytester.makepyfile(MY_TESTS)
    result = pytester.runpytest("-k", "order or shared or ready_when", "-p", "no:cacheprovider")
    result.stdout.fnmatch_lines_random(
        [
            "FAILED *::TestNewestFirst::test_calls_are_carried_out_in_the_order_in_which_they_were_sent*",
            "FAILED *::TestSharesMemory::test_all_workers_read_what_is_shared*",
            "*override the fixture make_backend with a function that makes the backend*",
        ]
    )
