"""A member of a communicator as a process of its own, which a test kills.

python -m tests.integration.communicator_member ADDRESS TRANSPORT RANK SIZE
"""

from __future__ import annotations

import asyncio
import sys

import trainer_client as tc


async def main(address: str, transport: str, rank: int, size: int) -> None:
    """Says what it does, line by line, and takes part in collectives as it is told by lines."""
    fast = {"shared_memory": transport == "shared_memory", "direct": transport == "direct"}
    async with tc.connect(address, **fast) as ps:
        team = await ps.communicator("team", size, rank=rank)
        print("joined", team.rank, flush=True)
        while (order := (await asyncio.to_thread(sys.stdin.readline)).strip()) != "end":
            try:
                if order == "leave":
                    await team.leave()
                else:
                    print(await team.all_gather(order), flush=True)
            except tc.PsError as error:
                print(type(error).__name__, error, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
