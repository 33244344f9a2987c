"""How a benchmark is timed, what is recorded of the machine, and how results become pages."""
