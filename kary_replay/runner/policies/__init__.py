"""Reads, plays and exports the policies that a run has kept.

Public are `play.play` and `export.export`, which are the commands of the same names.
"""
