"""Environments of a run: how they are made and stepped, and what is wrong with them."""
