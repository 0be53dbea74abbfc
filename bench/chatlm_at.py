"""The chat recipe at a batch size that brimful does not see and so does not change: `python
bench/chatlm_at.py 73 FLAGS`.

A prediction of this command is a trace of this very size, replayed: bench/chatlm_memory.py holds
the answer of a search to it.
"""

import sys

from recipes.chatlm.__main__ import app
from recipes.common.running import run

if __name__ == "__main__":
    sys.exit(run(app, [*sys.argv[2:], "--batch-size", sys.argv[1]]))
