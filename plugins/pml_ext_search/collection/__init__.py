"""The collection: vectors in one mapped file, their rows in SQLite, and the index."""
