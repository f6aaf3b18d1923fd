"""Stands in for the report's room until it is built."""

from benchmark.lib.figures import new_figure, save

__all__ = ["new_figure", "save"]
