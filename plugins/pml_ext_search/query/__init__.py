"""Queries of images, ids, vectors and texts, and their answers."""
