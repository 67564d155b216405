"""Worker processes begin quickly in these tests."""

from swath.testing.backend.warm import warm_processes  # noqa: F401  a fixture
