"""Runs of a recipe: planned, started one after the other, resumed."""
