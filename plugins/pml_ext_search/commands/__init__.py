"""The commands ``embed``, ``index``, ``query``, ``cluster`` and others, a module each."""
