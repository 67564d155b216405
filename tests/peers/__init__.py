"""Plugins of pytest that run the peers' own tests on Swath: the proof of what the documentation says of them.

PYTHONPATH=tests pytest -p peers.torchrl_shim …/rl/test/test_collectors.py
PYTHONPATH=tests pytest -p peers.rllib_shim …/ray/rllib/evaluation/tests
"""
