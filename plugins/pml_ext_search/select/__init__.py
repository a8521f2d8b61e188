"""Distinct images, outliers, and images near class centers."""
