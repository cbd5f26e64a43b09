"""Benchmarks of lamina against a bare hash map and Spark's own state stores: one module for each question."""
