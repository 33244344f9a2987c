"""Benchmarks of single calls, with rivals in the same run; pytest-benchmark runs them."""
