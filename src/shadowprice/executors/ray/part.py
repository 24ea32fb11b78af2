"""The supervisor's program file on a node: ``python -I -S part.py DIRECTORY DESCRIPTOR``.

As `local.agent`, but it leaves the process that began it, and lives only as long as that keeps its
end of a pipe, the lifeline, open.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from shadowprice.executors.supervision.supervisor import main  # found only now

if __name__ == "__main__":
    if os.fork():  # Ray kills the children of a worker that ends before they could end in order
        os._exit(0)
    os.setsid()
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
