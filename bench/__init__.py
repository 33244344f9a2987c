"""Side-by-side benchmarks. Start at README.md."""
