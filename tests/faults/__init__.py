"""Faults on purpose: processes killed at chosen places, damaged files, mutated recipes; see docs/faults.md."""
