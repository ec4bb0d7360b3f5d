"""`connect`: opens a client."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.failures import caller
from ps_wire.shown import shown
from ps_wire.tls import TLS
from ps_wire.tokens import metadata_of, of_variables
from trainer_client.client.blocking import BlockingClient
from trainer_client.client.client import Client
from trainer_client.client.portal import Portal
from trainer_client.graph.missing_graph import advise
from trainer_client.session.settings import Settings
from trainer_client.transport.channels import checked_address
from trainer_client.transport.grpc_stream import GrpcConnector
from trainer_client.transport.ray_owners import on_ray
from trainer_client.transport.resolvers import Candidates

if TYPE_CHECKING:
    from ps_wire.connections.connection import Connector
    from trainer_client.client.sessions import Directory
    from trainer_client.session.presence import OnState
    from trainer_client.transport.resolvers import Find


class Connecting:
    """The result of `connect`: enter it with `async with` or `with`, or await it.

    `async with` and `await` give a `Client`; `with` gives a `Blocking` around one, in a background thread's loop. A
    client that was awaited has to be closed with `close()`. If it is not, a `ResourceWarning` says so when it is
    collected, or at exit. Its owners are told when its event loop ends with `asyncio.run`, or when the program ends.
    """

    def __init__(
        self,
        connectors: Sequence[Connector],
        settings: Settings,
        names: Sequence[str] = (),
        directory: Directory = None,
    ) -> None:
        self._connectors = connectors
        self._names = names
        self._directory = directory
        self._settings = settings
        self._where = caller()
        self._client: Client | None = None
        self._portal: Portal | None = None

    if not TYPE_CHECKING:  # a checker of types knows which names there are

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"this has no {name!r}, because connect() has not connected yet: use "
                "`async with tc.connect(…) as ps:`, `with tc.connect(…) as ps:`, or `ps = await tc.connect(…)`"
            )

    async def __aenter__(self) -> Client:
        dial = partial(_dial, self._settings, self._directory)
        client = Client(self._connectors, self._settings, dial)
        await client.open(self._names, self._directory)
        client.watch(self._where)
        self._client = client
        return client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        advise(error)
        if self._client is not None:
            await self._client.close(error)

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()

    def __enter__(self) -> Any:
        self._portal = Portal.acquire()
        try:
            client = self._portal.run(self.__aenter__(), ends_early=True)
            return BlockingClient(client, partial(self.__exit__, None, None, None))
        except KeyboardInterrupt as error:
            self.__exit__(type(error), error, None)  # it may be open by now
            raise
        except BaseException:
            self._portal.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        portal, self._portal = self._portal, None
        if portal is None or portal.is_foreign:
            return
        try:
            portal.run(self.__aexit__(kind, error, trace))
        finally:
            portal.release()


def _addresses_of_variable() -> tuple[str, ...]:
    """The addresses in the variable `PS_ADDRESS`, which `ps-service run` sets."""
    found = tuple(each.strip() for each in os.environ.get("PS_ADDRESS", "").split(",") if each.strip())
    if not found:
        raise InvalidArgumentError(
            "connect() needs the address of at least one owner, or directory= for all of a group. Without both it "
            "takes the addresses in the variable PS_ADDRESS, which `ps-service run` sets, and there is none"
        )
    try:
        return tuple(checked_address(each, may_be_name=False) for each in found)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"in the variable PS_ADDRESS, {error}") from None


def _dial(settings: Settings, directory: Directory, address: str) -> GrpcConnector:
    tls = directory.tls_of(address, settings.tls) if isinstance(directory, Candidates) else settings.tls
    return GrpcConnector(address, tls, settings.token)


def connect(
    *owners: str | Connector,
    directory: str | Sequence[str] | Find = "",
    timeout: float | None = 60.0,
    connect_timeout: float = 30.0,
    reconnect_timeout: float = 60.0,
    shared_memory: bool = True,
    direct: bool = True,
    tls: TLS | None = None,
    token: str | Path | None = None,
    namespace: str = "",
    seed: int | None = None,
    on_state: OnState | None = None,
) -> Connecting:
    """Connects a trainer to one or more owners.

        async with tc.connect("127.0.0.1:50051") as ps: ...     # methods return awaitables
        with tc.connect("127.0.0.1:50051") as ps: ...           # methods block
        async with tc.connect("ps0", "ps1", directory="127.0.0.1:50051") as ps: ...     # found by their names
        async with tc.connect(directory="127.0.0.1:50051") as ps: ...   # all owners of the group; see `find_owners`
        async with tc.connect("ps0", directory=find) as ps: ...         # find("ps0") gives the address
        async with tc.connect(directory="ray:ps") as ps: ...    # all owners that `ps-service ray up --name ps` started
        async with tc.connect() as ps: ...                      # all owners of `ps-service run`, which sets PS_ADDRESS

    An owner that was found by its name may move: each time that its stream breaks, it is looked for again.

    Args:
        owners: Addresses (host:port), or connectors of another transport. Without any, those in the variable
            `PS_ADDRESS`, separated by commas. With `directory`, names, or none for all owners of the group. Programs
            that have joined it with `init_rpc` are not among these.
        directory: Address of an owner in the group of those owners (`ps-service serve --directory`). Or several, of
            which one has to answer; a host name stands for all addresses that DNS has for it. Or a function that gives
            the address of the owner with a name, at each dial; it may be async, and otherwise runs in a thread. Or
            `ray:NAME`, in a program that is connected to Ray: the owners of the cluster NAME there, or some of them.
        timeout: Default timeout of calls, in seconds; None is no limit.
        connect_timeout: Seconds to wait for an owner that cannot be reached yet, or is not in the directory yet; with
            `directory` alone, also for the first owner of the group.
        reconnect_timeout: Seconds to try to open a broken stream again before the session is given up.
        shared_memory: Whether to use shared memory with an owner on the same host that offers it.
        direct: Whether to use a direct connection with an owner that offers one, where shared memory is not used.
        tls: The certificates with which owners are reached over TLS, all of them. None takes those that the variables
            `PS_TLS_CA`, `PS_TLS_CERT`, `PS_TLS_KEY` and `PS_TLS_SERVER_NAME` name; without any, nothing is encrypted.
        token: The token that `ps-service token add` has made for this trainer, or the path of a file that has it, which
            is read at each connection. None takes that of the variable `PS_TOKEN`, or of the file that
            `PS_OWN_TOKEN_FILE` names.
        namespace: Where the names of objects and tables are looked up: each namespace has names of its own. Empty is
            that of the variable `PS_NAMESPACE`, or `default`.
        seed: Seeds the calls, as `Client.manual_seed` does.
        on_state: Is called with a `ConnectionState` when an owner is reached, cannot be reached any more, or is given
            up; on the client's event loop, which it must not block. The logger `trainer_client` tells the same in
            words, for interruptions of more than a second.

    Raises:
        InvalidArgumentError: No address was given, or one that is not host:port; or a name was given twice, or none
            with a function; or another argument is of a wrong type; or this program is not connected to Ray.
        UnavailableError: When entered: an owner cannot be reached in time, the group has none in time, or this process
            is a fork of one that has used gRPC.
        UnauthenticatedError: When entered: an owner asks for a token or a certificate, and has got none that it knows.
        UnknownNameError: When entered: an owner has not entered the directory in time.
    """
    tls, token = tls or TLS.of_variables(), token or of_variables()
    metadata_of(token)
    settings = Settings(
        timeout,
        connect_timeout,
        reconnect_timeout,
        shared_memory,
        direct,
        on_state=on_state,
        tls=tls,
        token=token,
        namespace=namespace or os.environ.get("PS_NAMESPACE", ""),
    )
    settings.seeding.begin(seed)
    if directory:
        names = _checked(owners)
        if (there := on_ray(directory)) is not None:
            return Connecting((), settings, names, there)
        if not callable(directory):
            candidates = Candidates(_listed(directory))
            return Connecting((), settings, names, candidates)
        if not names:
            raise InvalidArgumentError("with a function as directory=, connect() needs the names of the owners")
        return Connecting((), settings, names, directory)
    owners = owners or _addresses_of_variable()
    return Connecting([_connector(each, tls, token) for each in owners], settings)


def _listed(directory: str | Sequence[str]) -> Sequence[str]:
    addresses = [directory] if isinstance(directory, str) else directory
    if not isinstance(addresses, Sequence) or not all(isinstance(each, str) for each in addresses):
        raise InvalidArgumentError(
            f"directory= is the address of an owner, several in a list, or a function, not {shown(directory)}"
        )
    return addresses


def _connector(owner: str | Connector, tls: TLS | None, token: str | Path | None) -> Connector:
    if isinstance(owner, str):
        return GrpcConnector(checked_address(owner), tls, token)
    if not hasattr(owner, "connect"):
        raise InvalidArgumentError(
            f"connect() takes addresses of owners one by one, as in connect('ps0:50051', 'ps1:50051'), not {owner!r}"
        )
    return owner


def _checked(owners: Sequence[str | Connector]) -> list[str]:
    """Names to look up in a directory."""
    names = [owner for owner in owners if isinstance(owner, str)]
    if len(names) < len(owners):
        raise InvalidArgumentError("with directory=, give the names of owners instead of connectors")
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"owner {name!r} is named twice; name each owner once")
        if ":" in name:
            raise InvalidArgumentError(f"with directory=, give the names of owners; {name!r} is an address")
    return names
