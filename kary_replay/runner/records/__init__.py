"""What is written down of a run and shown of it: the run directory, scalars, the display, learning curves."""
