"""Writes down and shows how a run goes: the run directory, scalars, the display, curves.

Public is the format of a run directory, which `run_directory` describes.
"""
