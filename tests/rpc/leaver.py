"""A member that leaves while it waits for an answer, with a callback and in another thread.

python -m tests.rpc.leaver DIRECTORY
"""

from __future__ import annotations

import os
import sys
import threading

from tests.rpc import situations as s
from trainer_client import rpc


def told(future: rpc.Future[bool]) -> None:
    """Waits for what will not come, and says what came instead."""
    try:
        future.wait()
    except Exception as error:
        # In one piece, because two threads do this at the same time.
        os.write(1, f"{type(error).__name__}\n".encode())


if __name__ == "__main__":
    rpc.init_rpc("leaver", directory=sys.argv[1])
    first = rpc.rpc_async("worker1", s.wait_for, args=("the leaver", 5.0))
    second = rpc.rpc_async("worker2", s.wait_for, args=("the leaver", 5.0))
    first.add_done_callback(told)
    thread = threading.Thread(target=told, args=(second,))
    thread.start()
    rpc.rpc_sync("worker1", s.begun, args=("the leaver",))
    rpc.shutdown(graceful=False)
    thread.join()
    os.write(1, b"left\n")
