"""``python -m membrane``: the same as the ``membrane`` script."""

import sys

from membrane.ui.cli import main

sys.exit(main(sys.argv[1:]))
