"""The name under which TorchRL has its collector on Ray."""

from swath.collectors.ray_collector import RayCollector

__all__ = ["RayCollector"]
