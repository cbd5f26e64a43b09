"""Stores that Python uses directly, without Spark."""
