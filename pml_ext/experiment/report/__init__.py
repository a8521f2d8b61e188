"""The report of a run: one HTML file that opens without a network, and its figures."""

from .content import write_run_report

__all__ = ["write_run_report"]
