"""The settings of the example."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The settings of one run, with the defaults of the command line."""

    observers: int = 2
    episodes: int = 1000
    """The run ends after this many, solved or not."""
    seed: int = 0
    gamma: float = 0.99
    """Discount of rewards per step."""
    lr: float = 0.01
    out: Path = Path("out")
    """Directory for the report and the picture."""
    rank: int | None = None
    """Rank of this process, if members are started by hand: 0 is the agent."""
    world_size: int | None = None
    master_addr: str = "127.0.0.1"
    master_port: int | None = None

    def __post_init__(self) -> None:
        for name in ("observers", "episodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if not 0 <= self.gamma < 1:
            raise ValueError("gamma must be at least 0 and less than 1")
        if self.rank is None:
            return
        if self.world_size is None or self.master_port is None:
            raise ValueError("with --rank there have to be --world-size and --master-port")
        if self.world_size < 2 or not 0 <= self.rank < self.world_size:
            raise ValueError("the ranks go from 0, the agent, to one less than the world size, which is at least 2")


def parse(arguments: list[str] | None = None) -> Settings:
    """Parses the command line; exits with code 2 if it is not valid."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m examples.cartpole",
        description="An agent learns to balance a pole from observers in processes of their own.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--observers", type=int, default=default.observers, help="observer processes")
    parser.add_argument("--episodes", type=int, default=default.episodes, help="end after so many, solved or not")
    parser.add_argument("--seed", type=int, default=default.seed, help="first weights, actions and environments")
    parser.add_argument("--gamma", type=float, default=default.gamma, help="what a reward is worth one step earlier")
    parser.add_argument("--lr", type=float, default=default.lr, help="learning rate")
    parser.add_argument("--out", type=Path, default=default.out, help="directory for report and picture")
    by_hand = parser.add_argument_group("one member, by hand")
    by_hand.add_argument("--rank", type=int, help="0 is the agent, the others are observers")
    by_hand.add_argument("--world-size", type=int, help="how many members there are, the agent included")
    by_hand.add_argument("--master-addr", default=default.master_addr, help="where the agent is")
    by_hand.add_argument("--master-port", type=int, help="the agent's port")
    try:
        return Settings(**vars(parser.parse_args(arguments)))
    except ValueError as error:
        parser.error(str(error))
