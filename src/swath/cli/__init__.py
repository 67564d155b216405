"""The command line: `swath train` and `swath eval`."""
