"""The policies that a run has kept: read again, played, exported."""
