"""Clusters of embedded images, and contact sheets."""
