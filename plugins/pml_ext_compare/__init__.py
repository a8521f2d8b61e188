"""Comparison of recipes and trained runs: statistics, tuning, executors, probing of frozen trunks."""
