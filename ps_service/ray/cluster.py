"""A cluster of owners on Ray."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ray

from ps_service.ray import ray_state
from ps_service.ray.owner_spec import OwnerSpec
from ps_service.ray.owner_state import OwnerState
from ps_service.ray.placement import Placement, release
from ps_service.ray.supervisor import Supervisor
from ps_wire.errors import InvalidArgumentError, NameConflictError, UnavailableError
from ps_wire.supervisors import NAMESPACE, is_supervisor_in, supervisor_name

_CALLS: Final = 16
"""Calls that a supervisor answers at the same time; `stop` takes as long as its owner drains."""

_TOLD_BY_RAY: Final = ("placing", "unknown")
"""States of owners whose supervisors did not tell them."""

_ANSWER_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.25


def start(
    name: str = "ps",
    owners: int = 1,
    imports: Sequence[str] = (),
    data_dir: str | Path = "",
    *,
    cpus: float = 1.0,
    memory: int = 0,
    labels: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
    strict: bool = False,
    flags: Sequence[str] = (),
    runtime_env: Mapping[str, Any] | None = None,
    wait: float = 120.0,
) -> Cluster:
    """Starts owners on the nodes of the Ray cluster that this program is connected to, or can connect to.

    They do not end with this program, and Ray starts them again elsewhere when a node is lost or drained, with what
    they have in their data directory.

    Args:
        name: Name of the cluster, for `tc.connect(directory="ray:NAME")`. The owners are called `NAME0`, `NAME1` …
        owners: How many there are.
        imports: Modules whose hosted classes trainers may create. They have to be there on the nodes, as those of a
            job with a `working_dir` are.
        data_dir: A folder on a file system that all nodes share. Each owner has a folder of its name there. Without
            it, an owner that is started again has lost its state.
        cpus: Cores that Ray reserves for each owner.
        memory: Bytes of memory that Ray reserves for each owner.
        labels: Labels of the nodes that may be used.
        resources: Custom resources that Ray reserves for each owner.
        strict: Whether no two owners may be on one node. One whose node is lost then waits for another node.
        flags: Further flags of `ps-service serve`, such as `["--durability", "always"]`.
        runtime_env: The runtime environment of the owners, in addition to that of this job.
        wait: Seconds to wait until all owners serve.

    Raises:
        InvalidArgumentError: A name or number is not valid.
        NameConflictError: A cluster of that name runs already.
        UnavailableError: There is no Ray to connect to, or not all owners serve in time. Those that were started stay,
            if there was a node for each.
    """
    ends = time.monotonic() + wait
    _check(name, owners)
    placement = Placement(cpus, memory, labels or {}, resources or {}, strict)
    group = placement.reserve(name, owners, wait)
    names = tuple(f"{name}{number}" for number in range(owners))
    folders = [str(Path(data_dir).absolute() / each) if data_dir else "" for each in names]
    for index, (each, folder) in enumerate(zip(names, folders, strict=True)):
        spec = OwnerSpec(name, each, names, tuple(imports), folder, tuple(flags))
        _supervise(spec, placement.options(group, index), runtime_env or {})
    cluster = Cluster(name)
    cluster.wait(ends - time.monotonic())
    return cluster


def _check(name: str, owners: int) -> None:
    """Connects to Ray, and raises if no cluster of so many owners can have the name."""
    if not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise InvalidArgumentError(f"the name of a cluster begins with a letter, as 'ps' does, and not as {name!r}")
    if owners < 1:
        raise InvalidArgumentError(f"a cluster has at least one owner, not {owners}")
    connect()
    if _actors(name):
        raise NameConflictError(f"a cluster {name!r} runs already: `ps-service ray down --name {name}` ends it")


def _supervise(spec: OwnerSpec, where: Mapping[str, Any], runtime_env: Mapping[str, Any]) -> None:
    """Starts the supervisor of an owner, which starts that. `where` are the options of its placement."""
    # Ray's workers run behind all other programs otherwise.
    variables = {"RAY_worker_niceness": "0", **runtime_env.get("env_vars", {})}
    ray.remote(Supervisor).options(
        name=supervisor_name(spec.cluster, spec.name),
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=_CALLS,
        runtime_env={**runtime_env, "env_vars": variables},
        **where,
    ).remote(spec)


class Cluster:
    """The owners that were started under a name. Raises `UnavailableError` if there is no Ray or no such cluster."""

    def __init__(self, name: str = "ps") -> None:
        self.name: Final = name
        connect()
        self._supervisors: Final = {
            actor.partition("/")[2]: ray.get_actor(actor, namespace=NAMESPACE) for actor in _actors(name)
        }
        if not self._supervisors:
            raise UnavailableError(f"no cluster {name!r} runs on this Ray")

    def status(self) -> list[OwnerState]:
        """Where each owner is. One for which Ray has no node yet has the state `placing`, and one whose supervisor does
        not answer, as on a node that is lost, `unknown`."""
        asked = {owner: actor.describe.remote() for owner, actor in self._supervisors.items()}
        ends = time.monotonic() + _ANSWER_SECONDS
        return [self._state(owner, answer, max(ends - time.monotonic(), 0.0)) for owner, answer in asked.items()]

    def _state(self, owner: str, answer: Any, seconds: float) -> OwnerState:
        try:
            told: OwnerState = ray.get(answer, timeout=seconds)
            return replace(told, moves=ray_state.state_of(self._supervisors[owner]).restarts)
        except (ray.exceptions.RayError, TimeoutError):
            found = ray_state.state_of(self._supervisors[owner])
        if found.is_placed:
            return OwnerState(owner, "unknown", moves=found.restarts, error="its supervisor does not answer")
        return OwnerState(
            owner, "placing", moves=found.restarts, error="Ray starts its supervisor when a node has room"
        )

    def wait(self, seconds: float = 120.0) -> None:
        """Waits until all owners serve. Raises `UnavailableError` if they do not in time."""
        ends, reasons = time.monotonic() + seconds, dict[str, str]()
        while away := [each for each in self.status() if each.state != "serving"]:
            # A supervisor that was started again does not know what was before.
            reasons.update((each.name, each.error) for each in away if each.error and each.state not in _TOLD_BY_RAY)
            if time.monotonic() > ends:
                told = "; ".join(f"{each.name} is {each.state}: {reasons.get(each.name, each.error)}" for each in away)
                raise UnavailableError(f"not all owners serve after {max(seconds, 0.0):.0f} s: {told}")
            time.sleep(_LOOK_SECONDS)

    def down(self, timeout: float | None = None) -> None:
        """Drains all owners, at the same time, waits until they have ended, and removes their supervisors.

        An owner whose supervisor does not answer is not waited for: it drains by itself. Raises `UnavailableError` if
        another one has not ended in time; those that have left their state whole.
        """
        there = [each.name for each in self.status() if each.state not in _TOLD_BY_RAY]
        stopping = {owner: self._supervisors[owner].stop.remote(timeout) for owner in there}
        left = []
        for owner, stopped in stopping.items():
            try:
                if not ray.get(stopped, timeout=None if timeout is None else timeout + _ANSWER_SECONDS):
                    left.append(owner)
            except (ray.exceptions.RayError, TimeoutError):
                left.append(owner)
        for actor in self._supervisors.values():
            ray.kill(actor)
        release(self.name)
        if left:
            raise UnavailableError(f"{', '.join(left)} had not ended: an owner without its supervisor drains by itself")


def connect() -> None:
    """Connects this program to Ray, if it is not. Raises `UnavailableError` if there is none."""
    if ray.is_initialized():
        return
    try:
        ray.init(address="auto", log_to_driver=False, configure_logging=False)
    except ConnectionError as error:
        raise UnavailableError(f"no Ray runs here: start it with `ray start --head` ({error})") from None


def _actors(cluster: str) -> list[str]:
    """The names of the supervisors of a cluster."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    found = [each["name"] for each in actors if each["namespace"] == NAMESPACE]
    return sorted((each for each in found if is_supervisor_in(cluster, each)), key=lambda name: (len(name), name))
