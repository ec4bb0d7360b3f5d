"""Finds owners that were started on Ray, by asking the actors that supervise them."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from ps_wire.errors import InvalidArgumentError, UnavailableError
from ps_wire.supervisors import NAMESPACE, is_supervisor_in, supervisor_name

_ON_RAY: Final = re.compile(r"ray:([A-Za-z_][\w.-]*)")
"""A port stands behind the name of a host, and no name of a cluster is a number."""

_ANSWER_SECONDS: Final = 5.0
"""Seconds that a supervisor may take for an answer."""


class RayOwners:
    """The owners of a cluster on Ray. It is called with the name of one, and tells its address; both that and `names`
    ask the supervisors, and may block.

    Raises `InvalidArgumentError` where Ray is not installed or the program is not connected to it, and
    `UnavailableError` if there is no such owner, or it does not serve.
    """

    def __init__(self, cluster: str) -> None:
        self.cluster: Final = cluster
        self._ray = _library()
        self._supervisors: dict[str, Any] = {}
        self._check()

    def __call__(self, name: str) -> str:
        address = str(self._ask(supervisor_name(self.cluster, name), "address"))
        if not address:
            raise UnavailableError(f"{name!r} is being started, or moves")
        return address

    def names(self) -> list[str]:
        """The owners that the cluster was started with, in their order."""
        self._check()
        actors = [each["name"] for each in self._ray.util.list_named_actors(all_namespaces=True)
                  if each["namespace"] == NAMESPACE and is_supervisor_in(self.cluster, each["name"])]  # fmt: skip
        why = f"no cluster {self.cluster!r} runs on this Ray: `ps-service ray up --name {self.cluster}` starts one"
        for actor in sorted(actors):
            try:
                return list(self._ask(actor, "names"))
            except UnavailableError as error:
                why = str(error)
        raise UnavailableError(why)

    def _ask(self, actor: str, method: str) -> Any:
        """Asks a supervisor. It is looked up again only once it is over, so it answers while Ray's head is away."""
        self._check()
        supervisor = self._supervisors.get(actor)
        if supervisor is None:
            try:
                supervisor = self._supervisors[actor] = self._ray.get_actor(actor, namespace=NAMESPACE)
            except ValueError:
                raise UnavailableError(f"Ray has no supervisor {actor!r}") from None
        errors = self._ray.exceptions
        try:
            # Not `ray.get`, which warns in actors with an event loop.
            return getattr(supervisor, method).remote().future().result(_ANSWER_SECONDS)
        except TimeoutError:
            raise UnavailableError(f"the supervisor {actor!r} does not answer within {_ANSWER_SECONDS:g} s") from None
        except errors.RayActorError as error:
            if isinstance(error, errors.ActorUnavailableError):
                raise UnavailableError(f"the supervisor {actor!r} is being started again") from None
            self._supervisors.pop(actor, None)
            raise UnavailableError(f"the supervisor {actor!r} is over") from None

    def _check(self) -> None:
        if not self._ray.is_initialized():
            raise InvalidArgumentError(
                f"directory='ray:{self.cluster}' needs a program that is connected to Ray: call "
                "ray.init(address='auto') first, or run in a task, an actor or a job of Ray"
            )


def on_ray(directory: object) -> RayOwners | None:
    """The owners that `directory="ray:NAME"` stands for; None if it is anything else."""
    named = _ON_RAY.fullmatch(directory) if isinstance(directory, str) else None
    return None if named is None else RayOwners(named[1])


def _library() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise InvalidArgumentError(
            "owners on Ray are found with the package ray: pip install 'torch-parameter-server[ray]'"
        ) from None
