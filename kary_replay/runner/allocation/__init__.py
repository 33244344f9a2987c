"""How the cores of a machine are split between actors and learners."""
