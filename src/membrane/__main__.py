"""``python -m membrane``: the same as the ``membrane`` script.

``-m`` puts the current directory, the workspace, in front of ``sys.path``: a ``json.py`` in it would be run here,
outside of every sandbox.  It is taken away before anything else is imported.  What the interpreter itself looks up
before, ``runpy`` and this package, can only be kept out by ``python -P -m membrane``, or by the script.
"""

import os
import sys

if not sys.flags.safe_path and sys.path:
    try:
        here = os.getcwd()
    except OSError:
        here = ""  # it is gone, and holds nothing
    if sys.path[0] in ("", here):
        del sys.path[0]

from membrane.ui.cli import main

sys.exit(main(sys.argv[1:]))
