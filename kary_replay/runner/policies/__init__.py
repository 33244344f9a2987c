"""Reads, plays and exports the policies that a run has kept.

Public are `play.play` and `export.export`, which are the commands of the same names, and
`checkpoint_policy`, for programs that act by a run's policy.
"""
