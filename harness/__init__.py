"""The pipeline: plan -> workload -> traffic -> measurement -> oracles -> gate -> report. Start at `pipeline.py`."""

__version__ = "0.1.0"
