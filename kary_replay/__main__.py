"""``python -m kary_replay`` reports on the installation; with arguments it is the command line."""

import sys

if __name__ == "__main__":  # the processes of a run import this file, and must do nothing here
    if sys.argv[1:]:
        from .cli import main

        sys.exit(main())
    from .about import about

    print(about(), end="")
