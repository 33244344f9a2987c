"""``python -m kary_replay``: what is installed here, and what works; with arguments, the command line."""

import sys

if __name__ == "__main__":  # not in the processes of a run, which import this file
    if sys.argv[1:]:
        from .cli import main

        sys.exit(main())
    from .about import about

    print(about(), end="")
