"""What belongs to whom: nobody uses the passes and objects of another identity by knowing their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ps_service.access import namespaces, roles
from ps_service.access.access import Point
from ps_service.access.identities import asking
from ps_service.access.namespaces import names_context

if TYPE_CHECKING:
    from ps_service.access.access import Access, Asked
    from ps_service.access.identities import Asker, Identity
    from ps_service.hosting.objects import HostedObject
    from ps_service.hosting.registry import Registry
    from ps_service.sessions.sessions import Sessions


class Belongings:
    """Checks requests against what they name. Owners act for the trainers of others, and admins see everything."""

    def __init__(self, access: Access, sessions: Sessions, registry: Registry) -> None:
        self._access = access
        self._sessions = sessions
        self._registry = registry
        if access.is_on:
            registry.guard = self._check_object

    def enter(self, identity: Identity, namespace: str) -> str:
        """The namespace of a session that begins, as it is kept. Raises `PermissionDeniedError` if the identity has no
        role there, and `InvalidArgumentError` if it is none."""
        kept = namespaces.checked(namespace)
        where = Point(f"a session in the namespace {kept or namespaces.DEFAULT!r}", roles.READER)
        self._access.check(identity.within(kept), where)
        return kept

    def admit(self, asker: Asker | None, namespace: str, asked: Asked, request: Any) -> None:
        """Looks at a request before it runs, and gives the name in it its namespace. Raises `PermissionDeniedError` if
        its sender may not do this at all or names the pass of another, and `InvalidArgumentError` if it names another
        namespace."""
        if asker is not None:
            identity = asker.identity
            self._access.check(identity, asked, request)
            if names_context(request) and not identity.rights & roles.OWNER:
                self._check_trainer(asker, request.context.trainer)
        namespaces.enter(namespace, asker is None or asker.identity.is_everywhere, asked.name, request)

    def _check_trainer(self, asker: Asker, trainer: bytes) -> None:
        if trainer == asker.trainer:
            return
        session = self._sessions.get(trainer)
        if session is None or session.identity.name != asker.identity.name:
            raise self._access.refused(
                asker.identity,
                "a pass",
                f"the pass belongs to another identity than {asker.identity}; use a context of your own",
            )

    def _check_object(self, hosted: HostedObject) -> None:
        """Raises `PermissionDeniedError` if the sender of the request that runs may not use an object."""
        asker = asking.get()
        if asker is None or asker.identity.is_everywhere:
            return
        if hosted.name:
            namespace = namespaces.of(hosted.name)
            if namespace != asker.namespace:
                here, there = (each or namespaces.DEFAULT for each in (asker.namespace, namespace))
                why = f"the object belongs to the namespace {there!r}, and you are {asker.identity} in {here!r}"
                raise self._access.refused(asker.identity, str(hosted), f"{why}: connect with namespace={there!r}")
        elif not self._holds(asker, hosted.ref.object_id):
            raise self._access.refused(
                asker.identity,
                str(hosted),
                f"the object has no name, and belongs to another identity than {asker.identity}; names are shared",
            )

    def _holds(self, asker: Asker, object_id: str) -> bool:
        """Whether a session of the identity has a reference to an object: it has made it, or a call has returned it."""
        if self._registry.holds(asker.trainer, object_id):
            return True
        name = asker.identity.name
        same = (each for each in self._sessions.all() if each.identity.name == name)
        return any(self._registry.holds(each.trainer, object_id) for each in same)
