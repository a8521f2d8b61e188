"""The commands ``embed``, ``index``, ``query`` and ``cluster``, a module each."""
