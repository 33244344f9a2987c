"""Makes the environments of a run, steps several together, and says what is wrong with them.

Nothing here is public; `RunnerConfig.env` says what environments can be.
"""
