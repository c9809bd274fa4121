"""`python -m bilevel` is the command `bilevel`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
