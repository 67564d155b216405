"""Experience on disk: datasets that are whole at every moment, however their writer ends."""

from swath.report.datasets.reading import Dataset, open_dataset
from swath.report.datasets.writing import DatasetWriter

__all__ = ["Dataset", "DatasetWriter", "open_dataset"]
