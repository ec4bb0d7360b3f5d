"""Small programs that are built like those of torch's tutorials: the RNN, the pipeline, and reinforcement learning."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ps_service import hosted, remote
from trainer_client import rpc


@remote
def call_method(method: Callable[..., Any], rref: rpc.RRef, *args: Any, **kwargs: Any) -> Any:
    return method(rref.local_value(), *args, **kwargs)


def remote_method(method: Callable[..., Any], rref: rpc.RRef, *args: Any, **kwargs: Any) -> Any:
    return rpc.rpc_sync(rref.owner(), call_method, args=[method, rref, *args], kwargs=kwargs)


@remote
def parameter_rrefs(module: nn.Module) -> list[rpc.RRef]:
    return [rpc.RRef(parameter) for parameter in module.parameters()]


# The RNN: layers on a server, others here


@hosted
class Table(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Embedding(tokens, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps ``[T, N]`` int64 to ``[T, N, width]``."""
        found: Tensor = self.encoder(tokens)
        return found.cpu()


@hosted
class Decoder(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.decoder = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[T, N, width]`` to ``[T, N, tokens]``."""
        result: Tensor = self.decoder(x)
        return result


class RNN(nn.Module):
    """Holds the LSTM; the server holds the rest."""

    def __init__(self, server: str, tokens: int, width: int) -> None:
        super().__init__()
        self.table = rpc.remote(server, Table, args=(tokens, width))
        self.rnn = nn.LSTM(width, width)
        self.decoder = rpc.remote(server, Decoder, args=(tokens, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Maps ``[T, N]`` int64 to ``[T, N, tokens]``."""
        embedded = remote_method(Table.forward, self.table, tokens)
        result: Tensor = remote_method(Decoder.forward, self.decoder, self.rnn(embedded)[0])
        return result

    def parameter_rrefs(self) -> list[rpc.RRef]:
        """References to all parameters, here and on the server."""
        theirs = [remote_method(parameter_rrefs, each) for each in (self.table, self.decoder)]
        return [*theirs[0], *parameter_rrefs(self.rnn), *theirs[1]]


# The pipeline: two shards with a lock each, and references to what goes from one to the other


class Shard(nn.Module):
    def __init__(self, device: str, *widths: int) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.device = device
        self.seq = nn.Sequential(*map(nn.Linear, widths, widths[1:]), nn.Tanh()).to(device)

    def forward(self, x_rref: rpc.RRef) -> Tensor:
        """Takes a reference to ``[N, in]``, and gives ``[N, out]``."""
        x = x_rref.to_here().to(self.device)
        with self._lock:
            out: Tensor = self.seq(x)
        return out.cpu()

    @remote
    def parameter_rrefs(self) -> list[rpc.RRef]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]


@hosted
class Shard1(Shard):
    """The first half."""


@hosted
class Shard2(Shard):
    """The second half."""


class Pipeline(nn.Module):
    """Sends parts of a batch through both shards at once."""

    def __init__(self, split_size: int, workers: list[str], widths: list[int]) -> None:
        super().__init__()
        self.split_size = split_size
        self.first = rpc.remote(workers[0], Shard1, args=("cpu", *widths[:3]))
        self.second = rpc.remote(workers[1], Shard2, args=("cpu", *widths[2:]))

    def forward(self, xs: Tensor) -> Tensor:
        """Maps ``[N, in]`` to ``[N, out]``."""
        futures: list[Any] = []
        for x in xs.split(self.split_size):
            y_rref = self.first.remote().forward(rpc.RRef(x))
            futures.append(self.second.rpc_async().forward(y_rref))
        return torch.cat(torch.futures.wait_all(futures))

    def parameter_rrefs(self) -> list[rpc.RRef]:
        """References to the parameters of both shards."""
        both = [each.remote().parameter_rrefs().to_here() for each in (self.first, self.second)]
        return [*both[0], *both[1]]


# Reinforcement learning: observers call back the agent that has called them, one by one or in a batch

State = npt.NDArray[np.float64]


@hosted
class Observer:
    def __init__(self, batch: bool) -> None:
        self.id = rpc.get_worker_info().id
        self.select_action = Agent.select_action_batch if batch else Agent.select_action

    def states(self, n_steps: int) -> Iterator[State]:
        return (np.array([self.id, step], float) for step in range(n_steps))

    @remote
    def run_episode(self, agent_rref: rpc.RRef, n_steps: int) -> list[Any]:
        rewards = torch.zeros(n_steps)
        for step, state in enumerate(self.states(n_steps)):
            action = rpc.rpc_sync(agent_rref.owner(), self.select_action, args=(agent_rref, self.id, state))
            remote_method(Agent.report_reward, agent_rref, self.id, action)
            rewards[step] = action
        return [rewards, n_steps]


@hosted
class Agent:
    """Its action is the sum of the state; in a batch, of the states of all observers."""

    def __init__(self, workers: list[str], batch: bool) -> None:
        self.agent_rref = rpc.RRef(self)
        self.rewards: dict[int, list[float]] = {rpc.get_worker_info(each).id: [] for each in workers}
        self.ob_rrefs = [rpc.remote(rpc.get_worker_info(each), Observer, args=(batch,)) for each in workers]
        self.states: dict[int, Tensor] = {}
        self.lock = threading.Lock()
        self.future_actions: Any = torch.futures.Future()

    @staticmethod
    @remote
    def select_action(agent_rref: rpc.RRef, ob_id: int, state: State) -> float:
        return torch.from_numpy(state).sum().item()

    @staticmethod
    @remote
    @rpc.functions.async_execution
    def select_action_batch(agent_rref: rpc.RRef, ob_id: int, state: State) -> Any:
        self = agent_rref.local_value()
        with self.lock:
            self.states[ob_id] = torch.from_numpy(state)
            actions = self.future_actions
            mine = actions.then(lambda actions: actions.wait().item() + ob_id)
            if len(self.states) == len(self.ob_rrefs):
                self.future_actions = torch.futures.Future()
                actions.set_result(torch.stack(list(self.states.values())).sum())
                self.states = {}
        return mine

    @remote
    def report_reward(self, ob_id: int, reward: float) -> None:
        self.rewards[ob_id].append(reward)

    def run_episode(self, n_steps: int) -> list[Any]:
        """Lets all observers run; gives what each returned."""
        futures: list[Any] = [each.rpc_async().run_episode(self.agent_rref, n_steps) for each in self.ob_rrefs]
        return torch.futures.wait_all(futures)
