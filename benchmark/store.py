"""Stands in for the report's room until it is built."""

from benchmark.lib.runs import max_reward, scripts_of

__all__ = ["max_reward", "scripts_of"]
