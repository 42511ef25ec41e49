"""Run a program in several processes, as a launcher does: python -m tests.several_processes COUNT MODULE [WORD ...]

A launcher starts Python once more often than that, and importing torch takes longer than most of what tests do then.
Here it is imported once, and the processes are forked. The tests of launching itself start real launchers.
"""

import os
import runpy
import signal
import sys

from torch.distributed import TCPStore

import submission.session  # noqa: F401  (with all that programs import, some of it late)
from tests import kills

ADDRESS = "127.0.0.1"


def program(module: str, words: list[str], rank: int) -> None:
    """Be the process of that rank."""
    sys.argv[1:] = words
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if ended.code:
            raise


def main() -> int:
    count, module, *words = sys.argv[1:]
    # Serves a port of its own choice, as a launcher's does: one chosen beforehand may be taken by now.
    store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
    os.environ |= {"MASTER_ADDR": ADDRESS, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    running = {kills.fork(lambda rank=rank: program(module, words, rank), log=None) for rank in range(int(count))}
    failed = False
    while running:
        child, status = os.wait()
        running.remove(child)
        failed |= status != 0
        for other in running if status else ():
            os.kill(other, signal.SIGTERM)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
