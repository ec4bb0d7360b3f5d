"""The parts of a distributed optimizer: one on each owner, and one in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import optim

from ps_wire.close_names import argument_hint
from ps_wire.codec.payload import PayloadReader, PayloadWriter
from ps_wire.codec.values import Encoder
from ps_wire.errors import InvalidArgumentError, NonFiniteGradientError
from ps_wire.numerics.autocast import Autocasts
from ps_wire.numerics.optimizer_validator import OptimizerValidator
from ps_wire.reported import Reported, write
from ps_wire.runtime.latency import Latency
from ps_wire.runtime.noop import noop
from ps_wire.v1 import operations_pb2 as pb
from ps_wire.v1.frames_pb2 import Frame, Reply, Request
from trainer_client.graph.leaves import borrowed_grads, reservations
from trainer_client.handles import states
from trainer_client.handles.references import state_of
from trainer_client.optimizers.replies import Answered, ReportedValues, answered
from trainer_client.optimizers.results import Unscaled, is_finite, unscale_leaves
from trainer_client.session.runs import Parameters
from trainer_client.session.stepped import Stepped, durable_in, owner_seconds, values_of

if TYPE_CHECKING:
    from ps_wire.v1.values_pb2 import Value
    from trainer_client.contexts.context import Context
    from trainer_client.handles.handles import RemoteObject
    from trainer_client.pending import Pending
    from trainer_client.session.in_flight import InFlightRequest, Read
    from trainer_client.session.session import Session

    Sent = Sequence[InFlightRequest[Any]]
    """Requests of one owner."""

    Then = Callable[[str, Sent], None]
    """Called with the name of an owner, and with the requests after which it has stepped."""

T = TypeVar("T")


class RemoteOptimizer:
    """The part of an optimizer that runs on one owner. Its name stands for it in messages. If there are others, and all
    owners have logs, the parts share the `versions` that owners have told, by owner. That of a table has the `mark` of
    its owner in the routing that the table's handle knows, 0 if no slot has moved."""

    versions: dict[str, int] | None = None
    mark: int | None = None

    def __init__(self, handle: RemoteObject) -> None:
        self.handle = handle
        self.name = handle.ref.to_message()

    @property
    def owner(self) -> str:
        """Name of its owner."""
        return self.name.owner

    @property
    def session(self) -> Session:
        """The session with its owner. Raises `StaleHandleError` if that has restarted from an earlier state."""
        return self.handle.session

    def follow(self) -> None:
        """Is the part on the owner that has it now, if it has moved."""
        self.handle.follow()
        self.name = self.handle.ref.to_message()

    @property
    def title(self) -> str:
        """Its class and its name, with a space behind."""
        handle = self.handle
        return f"{handle.class_name} {handle.name!r} " if handle.name else f"{handle.class_name} "

    def __str__(self) -> str:
        """Its owner, with the state of that if it cannot be reached."""
        state = state_of(self.handle)
        return f"{self.owner} ({state})" if state else self.owner

    def step(
        self,
        context: Context,
        read: Read[T],
        check_only: bool = False,
        follows: Sequence[InFlightRequest[Any]] = (),
        apart: bool = False,
        finish: bool = False,
        values: Mapping[str, Reported] | None = None,
        more: Sequence[RemoteOptimizer] = (),
        prepare: bool = False,
        compares: bool = False,
    ) -> InFlightRequest[T]:
        """Applies the gradients of the pass, after the requests of a backward, which has to succeed; with `check_only`,
        only fails if they would be refused. With `apart`, other owners step their parts by themselves: if the optimizer
        has rounds over them, nothing is applied, and the reply says so; but with `finish` it is, because another owner
        had no rounds yet, and has applied its part. With optimizers in `more`, on the same owner, all step or none. To
        `prepare` is to check only, and to have an owner with a log keep the gradients for the step. If it
        `compares`, or only checks, it raises `RowsMovedError`, with nothing applied, if rows of tables are elsewhere
        than this client knows."""
        frame = Frame()
        request = frame.request.step
        request.optimizer.CopyFrom(self.name)
        request.context.CopyFrom(context.message)
        request.check_only, request.prepare = check_only or prepare, prepare
        if (compares or request.check_only) and any(each.mark is not None for each in (self, *more)):
            request.marks.extend(each.mark or 0 for each in (self, *more))
        if not request.check_only:
            context.stepped.add(self.name.object_id)
            for each in more:
                context.stepped.add(each.name.object_id)
        request.apart, request.finish = apart or finish, finish
        if apart and self.versions is not None:
            request.beside.update((owner, of) for owner, of in self.versions.items() if owner != self.owner)
            read = partial(self._read_version, read)
        request.wait_seconds = owner_seconds(self.session.settings.timeout)
        request.more.extend([each.name for each in more])
        payload = None
        if values:
            payload = PayloadWriter()
            write(request.values, payload, values)
        return self.session.submit(frame, payload, read, follows=follows)

    def _read_version(self, read: Read[T], reply: Reply, payload: PayloadReader) -> T:
        if self.versions is not None:
            self.versions[self.owner] = reply.step.version
        return read(reply, payload)

    def push(
        self, frame: Frame, payload: PayloadWriter, read: Callable[[Stepped, Reply, PayloadReader], T]
    ) -> Pending[T]:
        """Sends the gradients of a replica; the optimizer is written into the frame."""
        request = frame.request.push
        request.optimizer.CopyFrom(self.name)
        request.wait_seconds = owner_seconds(self.session.settings.timeout)
        owner = self.owner

        def read_push(reply: Reply, payload: PayloadReader) -> T:
            step = reply.push.step
            made = Stepped({owner: step.version}, step, values_of(step, payload), durable_in({owner: step}))
            return read(made, reply, payload)

        return self.session.submit(frame, payload, read_push)

    def set_policy(self, policy: Value, owners: Sequence[str] = ()) -> Pending[pb.Decisions]:
        """Changes when gradients count; the decisions are for other owners of the optimizer. With `owners`, it takes
        part in rounds over these, unless it does already, and then the policy is not changed."""
        request = pb.SetOptionsRequest(optimizer=self.name, owners=owners, policy=policy)
        return self.session.submit(Request(set_options=request), None, lambda reply, _: reply.set_options.decisions)

    def gone_back(self, found: pb.GoneBack) -> Pending[None]:
        """Tells that an owner has an older state than others know of, and that all go on."""
        request = pb.SetOptionsRequest(optimizer=self.name, gone_back=found)
        return self.session.submit(Request(set_options=request), None, noop)

    def leave(self) -> Pending[pb.Decisions]:
        """Rounds do not wait for this trainer any more; the decisions are for other owners of the optimizer."""
        request = Request(leave=pb.LeaveRequest(optimizer=self.name))
        return self.session.submit(request, None, lambda reply, _: reply.leave.decisions)

    def values(self, reset: bool) -> Pending[ReportedValues]:
        """The values that were reported with gradients that count."""
        request = pb.ReportedRequest(optimizer=self.name, reset=reset)
        return self.session.submit(Request(reported=request), None, ReportedValues.of)

    def add_to_curves(self, values: Iterable[tuple[int, Mapping[str, float]]]) -> Pending[None]:
        """Adds values to the curves of the page, each with the version that it is for."""
        request = pb.AddToCurvesRequest(optimizer=self.name)
        for version, each in values:
            request.values.add(version=version, values=each)
        return self.session.submit(Request(add_to_curves=request), None, noop)

    def unscale(self, context: Context, factor: float) -> Pending[Unscaled]:
        """Multiplies the gradients of these parameters."""
        request = pb.UnscaleRequest(optimizer=self.name, context=context.message, factor=factor)
        return self.session.submit(
            Request(unscale=request), None, lambda reply, _: Unscaled(reply.unscale.present, reply.unscale.non_finite)
        )

    def set_options(self, group: int | None, options: Mapping[str, Any]) -> Pending[None]:
        payload = PayloadWriter()
        request = pb.SetOptionsRequest(optimizer=self.name, group=group)
        Encoder(payload).encode_into(request.options, dict(options))
        return self.session.submit(Request(set_options=request), payload, noop)

    def state_dict(self) -> Pending[dict[str, Any]]:
        return states.state_dict(self.handle)

    def load_state_dict(self, state: Mapping[str, Any]) -> Pending[Any]:
        return states.load_state_dict(self.handle, state)

    # As the part of an optimizer with the same rounds over several owners, of which the first decides

    def hold(
        self, context: Context, number: int, epoch: int, follows: Sequence[InFlightRequest[Any]] = ()
    ) -> Pending[int]:
        """Has an owner that does not decide the rounds hold gradients; the last decision that it has carried out."""
        request = pb.HoldRequest(optimizer=self.name, context=context.message, number=number, epoch=epoch)
        return self.session.submit(Request(hold=request), None, lambda reply, _: reply.hold.applied, follows=follows)

    def watch(self) -> Pending[None]:
        """Ends with a `DrainingError` when such an owner begins to drain."""
        request = pb.HoldRequest(optimizer=self.name, watch=True)
        return self.session.submit(Request(hold=request), None, noop)

    def settle(
        self, number: int, epoch: int, decisions: pb.Decisions | None, step: int = 0
    ) -> InFlightRequest[pb.SettleReply]:
        """Has that owner carry out decisions; None frees the gradients of an offer that was not made. The answer tells
        the version after the `step` of the owner that decides."""
        request = pb.SettleRequest(
            optimizer=self.name, number=number, epoch=epoch, release=decisions is None, step=step
        )
        if decisions is not None:
            request.decisions.CopyFrom(decisions)
        return self.session.submit(Request(settle=request), None, lambda reply, _: reply.settle)

    def offer(
        self,
        context: Context,
        number: int,
        epoch: int,
        applied: Mapping[str, int],
        values: Mapping[str, Reported],
        follows: Sequence[InFlightRequest[Any]] = (),
    ) -> Pending[Answered]:
        """Offers gradients to the rounds that this owner decides for several."""
        request, payload = pb.StepRequest(optimizer=self.name, context=context.message), PayloadWriter()
        context.stepped.add(self.name.object_id)
        request.wait_seconds = owner_seconds(self.session.settings.timeout)
        request.offer.CopyFrom(pb.Offer(number=number, epoch=epoch, applied=applied))
        write(request.values, payload, values)
        return self.session.submit(Request(step=request), payload, answered, follows=follows)

    def withdraw(self, number: int, epoch: int, applied: Mapping[str, int]) -> Pending[pb.StepReply]:
        """Takes such an offer back; the number 0 only asks for the decisions."""
        request = pb.StepRequest(optimizer=self.name)
        request.offer.CopyFrom(pb.Offer(number=number, epoch=epoch, applied=applied, withdraw=True))
        return self.session.submit(Request(step=request), None, lambda reply, _: reply.step)


class LocalOptimizer:
    """The part in this process, which steps with the gradients of a context. Refuses options that its class refuses."""

    def __init__(
        self,
        cls: type[optim.Optimizer],
        groups: Sequence[dict[str, Any]],
        options: Mapping[str, Any],
        refuse_non_finite: bool,
    ) -> None:
        try:
            self.optimizer = cls(groups, **options)
        except (TypeError, ValueError) as error:
            close = argument_hint(cls, options)
            raise InvalidArgumentError(f"{cls.__name__} refuses its arguments: {error}{close}") from None
        self._validator = OptimizerValidator(self.optimizer, options)
        self._refuse = refuse_non_finite
        self._latency = Latency()

    def check(self, context: Context) -> None:
        """Raises `NonFiniteGradientError` if a gradient holds NaN or infinity, and these are refused."""
        if self._refuse and not all(is_finite(gradient) for _, gradient in self._found(context)):
            raise NonFiniteGradientError("the gradient of a local parameter holds NaN or infinity; nothing was applied")

    def step(self, context: Context) -> None:
        """Applies the context's gradients of these parameters. Waits for passes that use the parameters."""
        with context.local.reserved(self._parameters):
            self._apply(context)

    def step_now(self, context: Context) -> bool:
        """Like `step`, on the event loop, if it is short and waits for nothing, as only torch's classes without hooks
        are known to; says whether it was made. An open block of autocast or of inference mode would change results."""
        optimizer = self.optimizer
        if (
            not self._latency.is_short
            or not type(optimizer).__module__.startswith("torch.optim.")
            or optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch.is_inference_mode_enabled()
            or Autocasts.current().regions
            or not context.local.take_now(self._parameters)
        ):
            return False
        with reservations.freed(self._parameters):
            self._apply(context)
        return True

    def _apply(self, context: Context) -> None:
        attempt = context.attempt
        again = attempt is not None and attempt.was_applied(Parameters(self._parameters))
        if not again:
            began = self._latency.begin()
            with borrowed_grads(self._parameters):
                for parameter, gradient in self._found(context):
                    parameter.grad = gradient
                self.optimizer.step()
            self._latency.end(began)
        if attempt is not None:
            attempt.passed(Parameters(self._parameters), applied=not again)

    def unscale(self, context: Context, factor: float) -> Unscaled:
        """Multiplies the context's gradients of these parameters, as `unscale_leaves`."""
        return unscale_leaves(self._parameters, context, factor)

    def check_options(self, places: Iterable[int], options: Mapping[str, Any]) -> None:
        """Raises `InvalidArgumentError` when options of some groups cannot be changed."""
        self._validator.check_options([self.optimizer.param_groups[place] for place in places], options)

    def state_dict(self) -> dict[str, Any]:
        """A copy of its state."""
        return copy.deepcopy(self.optimizer.state_dict())

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises `InvalidArgumentError` when a state does not fit."""
        self._validator.check_state(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a state that `check_state` has accepted."""
        self.optimizer.load_state_dict(copy.deepcopy(dict(state)))

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def _found(self, context: Context) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(each, grad) for each in self._parameters if (grad := context.gradient(each)) is not None]
