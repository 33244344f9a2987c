"""What turns the steps of environments into the rows of a buffer: n-step transitions, sequences, stacks of frames."""
