"""The writers, which turn the steps of environments into the rows of a buffer."""
