"""Images and vectors read in batches, embedded, and kept in a collection."""
