"""Scripts that measure speed, memory and robustness: ``python -m benchmarks.NAME``."""
