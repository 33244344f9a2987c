"""``python -m kary_replay``: the command line."""

import sys

from .cli import main

if __name__ == "__main__":  # not in the processes of a run, which import this file
    sys.exit(main())
