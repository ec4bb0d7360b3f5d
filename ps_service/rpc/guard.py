"""Asks the callers of every gRPC method who they are, before anything that they send is read."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc

from ps_service.access import namespaces, roles
from ps_service.access.access import Point
from ps_service.access.identities import caller
from ps_service.requests.operations import OPERATIONS
from ps_service.rpc.methods import OTHERS, SERVICE
from ps_service.rpc.unary_metadata import ERROR_KEY, NAMESPACE_KEY, STATUS, fit_for_metadata
from ps_wire.errors import PsError, to_message

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ps_service.access.access import Access, Asked
    from ps_service.access.identities import Identity

    _Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

AUTHORIZATION: Final = "authorization"
"""The metadata with the token."""

_NAMES: Final = ("x509_common_name", "x509_subject_alternative_name")
"""Where gRPC has the names of a certificate, which it has checked."""

METHODS: Final[dict[str, Asked]] = {
    **{f"/{SERVICE}/{name.title().replace('_', '')}": each for name, each in OPERATIONS.items()},
    **OTHERS,
}
"""Every method of gRPC that may be called. What is not here is refused, whoever asks."""


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # the stubs do not have it
    """Lets no call of a gRPC server begin whose caller may not make any such call."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        asked = METHODS.get(method)
        if handler is None or (asked is not None and asked.needs == roles.NOBODY):
            return handler
        return self._guarded(handler, asked or Point(method, roles.NOBODY))

    def _guarded(self, handler: Any, asked: Asked) -> Any:
        if not handler.request_streaming and not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, handler.request_deserializer, asked),
                response_serializer=handler.response_serializer,
            )
        run = handler.stream_stream
        assert run is not None, "another kind of method has no guard"
        return grpc.stream_stream_rpc_method_handler(
            (self._generator if inspect.isasyncgenfunction(run) else self._stream)(run, asked),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, run: Any, parse: Callable[[bytes], Any], asked: Asked) -> Any:
        async def guarded(data: bytes, context: _Context) -> Any:
            await self._admit(context, asked)
            return await run(parse(data), context)

        return guarded

    def _stream(self, run: Any, asked: Asked) -> Any:
        async def guarded(requests: Any, context: _Context) -> None:
            await self._admit(context, asked)
            await run(requests, context)

        return guarded

    def _generator(self, run: Any, asked: Asked) -> Any:
        async def guarded(requests: Any, context: _Context) -> AsyncIterator[Any]:
            await self._admit(context, asked)
            async for each in run(requests, context):
                yield each

        return guarded

    async def _admit(self, context: _Context, asked: Asked) -> None:
        """Notes who the caller is, or ends the call."""
        try:
            identity = self._identify(context, asked)
            if asked.needs == roles.NOBODY:
                raise self._access.refused(identity, asked.name, f"nobody may call {asked.name}")
            self._access.check(identity.within(_namespace(context)), asked)
        except PsError as error:
            message = fit_for_metadata(to_message(error))
            context.set_trailing_metadata(((ERROR_KEY, message.SerializeToString()),))
            await context.abort(STATUS[error.code], message.message)
            raise
        caller.set(identity)

    def _identify(self, context: _Context, asked: Asked) -> Identity:
        sent = [_text(value) for key, value in context.invocation_metadata() or () if key.lower() == AUTHORIZATION]
        return self._access.identify(sent, _names(context.auth_context()), asked.name)


def _namespace(context: _Context) -> str:
    found = [_text(value) for key, value in context.invocation_metadata() or () if key == NAMESPACE_KEY]
    return namespaces.checked(found[-1] if found else "")


def guards(access: Access) -> tuple[Guard, ...]:
    """What stands before the handlers of a gRPC server; nothing if there are no tokens."""
    return (Guard(access),) if access.is_on else ()


def _names(shown: Any) -> Iterable[str]:
    """The names in the certificate of the caller, if it has one that was checked."""
    return [_text(each) for key in _NAMES for each in shown.get(key, ())]


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
