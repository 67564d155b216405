"""All that takes the numbers of a run, behind one protocol; extras are imported when a sink is built."""

from swath.report.csv_sink import CsvSink
from swath.report.detached_sink import DetachedSink
from swath.report.mlflow_sink import MlflowSink
from swath.report.prometheus_sink import PrometheusSink
from swath.report.sink import Sink, SinkGroup, numbers_of
from swath.report.tensorboard_sink import TensorBoardSink
from swath.report.wandb_sink import WandbSink

__all__ = [
    "CsvSink",
    "DetachedSink",
    "MlflowSink",
    "PrometheusSink",
    "Sink",
    "SinkGroup",
    "TensorBoardSink",
    "WandbSink",
    "numbers_of",
]
