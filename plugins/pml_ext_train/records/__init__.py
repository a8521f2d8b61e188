"""What a run writes while it trains: numbers, trackers, and the files of its folder."""
