"""Looks for what will go wrong before a run does: in an env, a policy, this machine, Ray.

    Subject (env, policy, plans) ─┬─▶ env_api ─▶ env_autoreset, env_seeds, … ─▶ policy ─┐
    Machine (facts, handed in) ───┴─▶ threads, memory, ray_cluster, versions ───────────┴─▶ Report

Each check is a small function that yields a `Finding` for what is wrong, and nothing where all is well. Those of
env and policy can be carried out `Apart`, in a process that is ended when the user's code does not come back.
"""

from swath.doctor.apart import Apart
from swath.doctor.examination import Report, examine
from swath.doctor.finding import Finding, Level
from swath.doctor.machine import Machine
from swath.doctor.subject import Effort, Subject

__all__ = ["Apart", "Effort", "Finding", "Level", "Machine", "Report", "Subject", "examine"]
