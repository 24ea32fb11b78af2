"""The supervisor's program file on a node: ``python -I -S part.py DIRECTORY DESCRIPTOR``.

Like `supervision.agent`, but it detaches from the process that started it. It ends when that
process closes its end of a pipe, the lifeline.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from shadowprice.executors.supervision.supervisor import main  # needs the path set above

if __name__ == "__main__":
    if os.fork():  # Ray kills the children of a worker that exits, with no grace period
        os._exit(0)
    os.setsid()
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
