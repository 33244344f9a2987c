"""Benchmarks of whole training runs, each run in a process of its own."""
