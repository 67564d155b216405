"""What holds for every test."""

import os

# Small networks gain nothing from a second thread, and threads that wait for each other spin where cores are shared.
os.environ["OMP_NUM_THREADS"] = "1"
