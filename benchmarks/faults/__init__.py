"""Sweeps of damage: kills, damaged files, made-up recipes and batches."""
