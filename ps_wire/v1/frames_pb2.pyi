from ps_wire.v1 import errors_pb2 as _errors_pb2
from ps_wire.v1 import operations_pb2 as _operations_pb2
from ps_wire.v1 import probes_pb2 as _probes_pb2
from ps_wire.v1 import values_pb2 as _values_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("protocol", "trainer", "incarnation", "unanswered", "host", "shared_memory_token", "owner", "process_id", "host_name", "program", "member", "position", "last_pass", "namespace", "last_number")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UNANSWERED_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_NAME_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_PASS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LAST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    trainer: bytes
    incarnation: str
    unanswered: _containers.RepeatedScalarFieldContainer[int]
    host: str
    shared_memory_token: bytes
    owner: str
    process_id: int
    host_name: str
    program: str
    member: str
    position: int
    last_pass: int
    namespace: str
    last_number: int
    def __init__(self, protocol: _Optional[int] = ..., trainer: _Optional[bytes] = ..., incarnation: _Optional[str] = ..., unanswered: _Optional[_Iterable[int]] = ..., host: _Optional[str] = ..., shared_memory_token: _Optional[bytes] = ..., owner: _Optional[str] = ..., process_id: _Optional[int] = ..., host_name: _Optional[str] = ..., program: _Optional[str] = ..., member: _Optional[str] = ..., position: _Optional[int] = ..., last_pass: _Optional[int] = ..., namespace: _Optional[str] = ..., last_number: _Optional[int] = ...) -> None: ...

class SharedMemoryOffer(_message.Message):
    __slots__ = ("socket", "token", "max_segment_bytes")
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    socket: bytes
    token: bytes
    max_segment_bytes: int
    def __init__(self, socket: _Optional[bytes] = ..., token: _Optional[bytes] = ..., max_segment_bytes: _Optional[int] = ...) -> None: ...

class DirectOffer(_message.Message):
    __slots__ = ("port", "token")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    port: int
    token: bytes
    def __init__(self, port: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("owner", "incarnation", "resumed", "lease_seconds", "max_message_bytes", "max_in_flight", "version", "shared_memory", "max_session_bytes", "why_lost", "direct", "device", "prepares")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    RESUMED_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSION_BYTES_FIELD_NUMBER: _ClassVar[int]
    WHY_LOST_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PREPARES_FIELD_NUMBER: _ClassVar[int]
    owner: str
    incarnation: str
    resumed: bool
    lease_seconds: float
    max_message_bytes: int
    max_in_flight: int
    version: str
    shared_memory: SharedMemoryOffer
    max_session_bytes: int
    why_lost: str
    direct: DirectOffer
    device: str
    prepares: bool
    def __init__(self, owner: _Optional[str] = ..., incarnation: _Optional[str] = ..., resumed: bool = ..., lease_seconds: _Optional[float] = ..., max_message_bytes: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., version: _Optional[str] = ..., shared_memory: _Optional[_Union[SharedMemoryOffer, _Mapping]] = ..., max_session_bytes: _Optional[int] = ..., why_lost: _Optional[str] = ..., direct: _Optional[_Union[DirectOffer, _Mapping]] = ..., device: _Optional[str] = ..., prepares: bool = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("confirmed", "timeout_seconds", "depth", "after", "probe", "create", "attach", "release", "delete", "call", "fetch", "backward", "gradients", "norm", "scale", "end_context", "optimizer", "scheduler", "step", "set_options", "state", "load_state", "status", "register", "lookup", "members", "rendezvous", "unscale", "set_requires_grad", "sessions", "evict", "leave", "pull", "push", "hold", "settle", "add_gradients", "reported", "add_to_curves", "join_communicator", "leave_communicator", "collective", "history", "checkpoint", "snapshot", "durable", "move")
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    END_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SET_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOAD_STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    UNSCALE_FIELD_NUMBER: _ClassVar[int]
    SET_REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    ADD_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    ADD_TO_CURVES_FIELD_NUMBER: _ClassVar[int]
    JOIN_COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    LEAVE_COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    confirmed: _containers.RepeatedScalarFieldContainer[int]
    timeout_seconds: float
    depth: int
    after: _containers.RepeatedScalarFieldContainer[int]
    probe: _probes_pb2.Probe
    create: _operations_pb2.CreateRequest
    attach: _operations_pb2.AttachRequest
    release: _operations_pb2.ReleaseRequest
    delete: _operations_pb2.DeleteRequest
    call: _operations_pb2.CallRequest
    fetch: _operations_pb2.FetchRequest
    backward: _operations_pb2.BackwardRequest
    gradients: _operations_pb2.GradientsRequest
    norm: _operations_pb2.NormRequest
    scale: _operations_pb2.ScaleRequest
    end_context: _operations_pb2.EndContextRequest
    optimizer: _operations_pb2.OptimizerRequest
    scheduler: _operations_pb2.SchedulerRequest
    step: _operations_pb2.StepRequest
    set_options: _operations_pb2.SetOptionsRequest
    state: _operations_pb2.StateRequest
    load_state: _operations_pb2.LoadStateRequest
    status: _operations_pb2.StatusRequest
    register: _operations_pb2.RegisterRequest
    lookup: _operations_pb2.LookupRequest
    members: _operations_pb2.MembersRequest
    rendezvous: _operations_pb2.RendezvousRequest
    unscale: _operations_pb2.UnscaleRequest
    set_requires_grad: _operations_pb2.SetRequiresGradRequest
    sessions: _operations_pb2.SessionsRequest
    evict: _operations_pb2.EvictRequest
    leave: _operations_pb2.LeaveRequest
    pull: _operations_pb2.PullRequest
    push: _operations_pb2.PushRequest
    hold: _operations_pb2.HoldRequest
    settle: _operations_pb2.SettleRequest
    add_gradients: _operations_pb2.AddGradientsRequest
    reported: _operations_pb2.ReportedRequest
    add_to_curves: _operations_pb2.AddToCurvesRequest
    join_communicator: _operations_pb2.JoinCommunicatorRequest
    leave_communicator: _operations_pb2.LeaveCommunicatorRequest
    collective: _operations_pb2.CollectiveRequest
    history: _operations_pb2.HistoryRequest
    checkpoint: _operations_pb2.CheckpointRequest
    snapshot: _operations_pb2.SnapshotRequest
    durable: _operations_pb2.DurableRequest
    move: _operations_pb2.MoveRequest
    def __init__(self, confirmed: _Optional[_Iterable[int]] = ..., timeout_seconds: _Optional[float] = ..., depth: _Optional[int] = ..., after: _Optional[_Iterable[int]] = ..., probe: _Optional[_Union[_probes_pb2.Probe, _Mapping]] = ..., create: _Optional[_Union[_operations_pb2.CreateRequest, _Mapping]] = ..., attach: _Optional[_Union[_operations_pb2.AttachRequest, _Mapping]] = ..., release: _Optional[_Union[_operations_pb2.ReleaseRequest, _Mapping]] = ..., delete: _Optional[_Union[_operations_pb2.DeleteRequest, _Mapping]] = ..., call: _Optional[_Union[_operations_pb2.CallRequest, _Mapping]] = ..., fetch: _Optional[_Union[_operations_pb2.FetchRequest, _Mapping]] = ..., backward: _Optional[_Union[_operations_pb2.BackwardRequest, _Mapping]] = ..., gradients: _Optional[_Union[_operations_pb2.GradientsRequest, _Mapping]] = ..., norm: _Optional[_Union[_operations_pb2.NormRequest, _Mapping]] = ..., scale: _Optional[_Union[_operations_pb2.ScaleRequest, _Mapping]] = ..., end_context: _Optional[_Union[_operations_pb2.EndContextRequest, _Mapping]] = ..., optimizer: _Optional[_Union[_operations_pb2.OptimizerRequest, _Mapping]] = ..., scheduler: _Optional[_Union[_operations_pb2.SchedulerRequest, _Mapping]] = ..., step: _Optional[_Union[_operations_pb2.StepRequest, _Mapping]] = ..., set_options: _Optional[_Union[_operations_pb2.SetOptionsRequest, _Mapping]] = ..., state: _Optional[_Union[_operations_pb2.StateRequest, _Mapping]] = ..., load_state: _Optional[_Union[_operations_pb2.LoadStateRequest, _Mapping]] = ..., status: _Optional[_Union[_operations_pb2.StatusRequest, _Mapping]] = ..., register: _Optional[_Union[_operations_pb2.RegisterRequest, _Mapping]] = ..., lookup: _Optional[_Union[_operations_pb2.LookupRequest, _Mapping]] = ..., members: _Optional[_Union[_operations_pb2.MembersRequest, _Mapping]] = ..., rendezvous: _Optional[_Union[_operations_pb2.RendezvousRequest, _Mapping]] = ..., unscale: _Optional[_Union[_operations_pb2.UnscaleRequest, _Mapping]] = ..., set_requires_grad: _Optional[_Union[_operations_pb2.SetRequiresGradRequest, _Mapping]] = ..., sessions: _Optional[_Union[_operations_pb2.SessionsRequest, _Mapping]] = ..., evict: _Optional[_Union[_operations_pb2.EvictRequest, _Mapping]] = ..., leave: _Optional[_Union[_operations_pb2.LeaveRequest, _Mapping]] = ..., pull: _Optional[_Union[_operations_pb2.PullRequest, _Mapping]] = ..., push: _Optional[_Union[_operations_pb2.PushRequest, _Mapping]] = ..., hold: _Optional[_Union[_operations_pb2.HoldRequest, _Mapping]] = ..., settle: _Optional[_Union[_operations_pb2.SettleRequest, _Mapping]] = ..., add_gradients: _Optional[_Union[_operations_pb2.AddGradientsRequest, _Mapping]] = ..., reported: _Optional[_Union[_operations_pb2.ReportedRequest, _Mapping]] = ..., add_to_curves: _Optional[_Union[_operations_pb2.AddToCurvesRequest, _Mapping]] = ..., join_communicator: _Optional[_Union[_operations_pb2.JoinCommunicatorRequest, _Mapping]] = ..., leave_communicator: _Optional[_Union[_operations_pb2.LeaveCommunicatorRequest, _Mapping]] = ..., collective: _Optional[_Union[_operations_pb2.CollectiveRequest, _Mapping]] = ..., history: _Optional[_Union[_operations_pb2.HistoryRequest, _Mapping]] = ..., checkpoint: _Optional[_Union[_operations_pb2.CheckpointRequest, _Mapping]] = ..., snapshot: _Optional[_Union[_operations_pb2.SnapshotRequest, _Mapping]] = ..., durable: _Optional[_Union[_operations_pb2.DurableRequest, _Mapping]] = ..., move: _Optional[_Union[_operations_pb2.MoveRequest, _Mapping]] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("borrowed", "granted", "profile", "position", "error", "create", "attach", "release", "delete", "call", "fetch", "backward", "gradients", "norm", "scale", "end_context", "optimizer", "scheduler", "step", "set_options", "state", "load_state", "status", "register", "lookup", "members", "rendezvous", "unscale", "set_requires_grad", "sessions", "evict", "leave", "pull", "push", "hold", "settle", "add_gradients", "reported", "add_to_curves", "join_communicator", "leave_communicator", "collective", "history", "checkpoint", "snapshot", "durable", "move")
    BORROWED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    NORM_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    END_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SET_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LOAD_STATE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    UNSCALE_FIELD_NUMBER: _ClassVar[int]
    SET_REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    ADD_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    REPORTED_FIELD_NUMBER: _ClassVar[int]
    ADD_TO_CURVES_FIELD_NUMBER: _ClassVar[int]
    JOIN_COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    LEAVE_COMMUNICATOR_FIELD_NUMBER: _ClassVar[int]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    borrowed: _containers.RepeatedCompositeFieldContainer[_values_pb2.Handle]
    granted: _containers.RepeatedScalarFieldContainer[str]
    profile: _probes_pb2.Profile
    position: int
    error: _errors_pb2.Error
    create: _operations_pb2.CreateReply
    attach: _operations_pb2.AttachReply
    release: _operations_pb2.ReleaseReply
    delete: _operations_pb2.DeleteReply
    call: _operations_pb2.CallReply
    fetch: _operations_pb2.FetchReply
    backward: _operations_pb2.BackwardReply
    gradients: _operations_pb2.GradientsReply
    norm: _operations_pb2.NormReply
    scale: _operations_pb2.ScaleReply
    end_context: _operations_pb2.EndContextReply
    optimizer: _operations_pb2.CreateReply
    scheduler: _operations_pb2.CreateReply
    step: _operations_pb2.StepReply
    set_options: _operations_pb2.SetOptionsReply
    state: _operations_pb2.StateReply
    load_state: _operations_pb2.LoadStateReply
    status: _operations_pb2.StatusReply
    register: _operations_pb2.RegisterReply
    lookup: _operations_pb2.LookupReply
    members: _operations_pb2.MembersReply
    rendezvous: _operations_pb2.RendezvousReply
    unscale: _operations_pb2.UnscaleReply
    set_requires_grad: _operations_pb2.SetRequiresGradReply
    sessions: _operations_pb2.SessionsReply
    evict: _operations_pb2.EvictReply
    leave: _operations_pb2.LeaveReply
    pull: _operations_pb2.PullReply
    push: _operations_pb2.PushReply
    hold: _operations_pb2.HoldReply
    settle: _operations_pb2.SettleReply
    add_gradients: _operations_pb2.AddGradientsReply
    reported: _operations_pb2.ReportedReply
    add_to_curves: _operations_pb2.AddToCurvesReply
    join_communicator: _operations_pb2.JoinCommunicatorReply
    leave_communicator: _operations_pb2.LeaveCommunicatorReply
    collective: _operations_pb2.CollectiveReply
    history: _operations_pb2.HistoryReply
    checkpoint: _operations_pb2.CheckpointReply
    snapshot: _operations_pb2.SnapshotReply
    durable: _operations_pb2.DurableReply
    move: _operations_pb2.MoveReply
    def __init__(self, borrowed: _Optional[_Iterable[_Union[_values_pb2.Handle, _Mapping]]] = ..., granted: _Optional[_Iterable[str]] = ..., profile: _Optional[_Union[_probes_pb2.Profile, _Mapping]] = ..., position: _Optional[int] = ..., error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ..., create: _Optional[_Union[_operations_pb2.CreateReply, _Mapping]] = ..., attach: _Optional[_Union[_operations_pb2.AttachReply, _Mapping]] = ..., release: _Optional[_Union[_operations_pb2.ReleaseReply, _Mapping]] = ..., delete: _Optional[_Union[_operations_pb2.DeleteReply, _Mapping]] = ..., call: _Optional[_Union[_operations_pb2.CallReply, _Mapping]] = ..., fetch: _Optional[_Union[_operations_pb2.FetchReply, _Mapping]] = ..., backward: _Optional[_Union[_operations_pb2.BackwardReply, _Mapping]] = ..., gradients: _Optional[_Union[_operations_pb2.GradientsReply, _Mapping]] = ..., norm: _Optional[_Union[_operations_pb2.NormReply, _Mapping]] = ..., scale: _Optional[_Union[_operations_pb2.ScaleReply, _Mapping]] = ..., end_context: _Optional[_Union[_operations_pb2.EndContextReply, _Mapping]] = ..., optimizer: _Optional[_Union[_operations_pb2.CreateReply, _Mapping]] = ..., scheduler: _Optional[_Union[_operations_pb2.CreateReply, _Mapping]] = ..., step: _Optional[_Union[_operations_pb2.StepReply, _Mapping]] = ..., set_options: _Optional[_Union[_operations_pb2.SetOptionsReply, _Mapping]] = ..., state: _Optional[_Union[_operations_pb2.StateReply, _Mapping]] = ..., load_state: _Optional[_Union[_operations_pb2.LoadStateReply, _Mapping]] = ..., status: _Optional[_Union[_operations_pb2.StatusReply, _Mapping]] = ..., register: _Optional[_Union[_operations_pb2.RegisterReply, _Mapping]] = ..., lookup: _Optional[_Union[_operations_pb2.LookupReply, _Mapping]] = ..., members: _Optional[_Union[_operations_pb2.MembersReply, _Mapping]] = ..., rendezvous: _Optional[_Union[_operations_pb2.RendezvousReply, _Mapping]] = ..., unscale: _Optional[_Union[_operations_pb2.UnscaleReply, _Mapping]] = ..., set_requires_grad: _Optional[_Union[_operations_pb2.SetRequiresGradReply, _Mapping]] = ..., sessions: _Optional[_Union[_operations_pb2.SessionsReply, _Mapping]] = ..., evict: _Optional[_Union[_operations_pb2.EvictReply, _Mapping]] = ..., leave: _Optional[_Union[_operations_pb2.LeaveReply, _Mapping]] = ..., pull: _Optional[_Union[_operations_pb2.PullReply, _Mapping]] = ..., push: _Optional[_Union[_operations_pb2.PushReply, _Mapping]] = ..., hold: _Optional[_Union[_operations_pb2.HoldReply, _Mapping]] = ..., settle: _Optional[_Union[_operations_pb2.SettleReply, _Mapping]] = ..., add_gradients: _Optional[_Union[_operations_pb2.AddGradientsReply, _Mapping]] = ..., reported: _Optional[_Union[_operations_pb2.ReportedReply, _Mapping]] = ..., add_to_curves: _Optional[_Union[_operations_pb2.AddToCurvesReply, _Mapping]] = ..., join_communicator: _Optional[_Union[_operations_pb2.JoinCommunicatorReply, _Mapping]] = ..., leave_communicator: _Optional[_Union[_operations_pb2.LeaveCommunicatorReply, _Mapping]] = ..., collective: _Optional[_Union[_operations_pb2.CollectiveReply, _Mapping]] = ..., history: _Optional[_Union[_operations_pb2.HistoryReply, _Mapping]] = ..., checkpoint: _Optional[_Union[_operations_pb2.CheckpointReply, _Mapping]] = ..., snapshot: _Optional[_Union[_operations_pb2.SnapshotReply, _Mapping]] = ..., durable: _Optional[_Union[_operations_pb2.DurableReply, _Mapping]] = ..., move: _Optional[_Union[_operations_pb2.MoveReply, _Mapping]] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Confirm(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("numbers",)
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("turned_away", "held_up")
    TURNED_AWAY_FIELD_NUMBER: _ClassVar[int]
    HELD_UP_FIELD_NUMBER: _ClassVar[int]
    turned_away: _containers.RepeatedScalarFieldContainer[int]
    held_up: _containers.RepeatedCompositeFieldContainer[_operations_pb2.ContextId]
    def __init__(self, turned_away: _Optional[_Iterable[int]] = ..., held_up: _Optional[_Iterable[_Union[_operations_pb2.ContextId, _Mapping]]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: _errors_pb2.Error
    def __init__(self, error: _Optional[_Union[_errors_pb2.Error, _Mapping]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, frames: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("number", "hello", "welcome", "request", "reply", "part", "cancel", "confirm", "goodbye", "refusal", "waiting", "batch", "draining", "payload_bytes", "payload")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    number: int
    hello: Hello
    welcome: Welcome
    request: Request
    reply: Reply
    part: Part
    cancel: Cancel
    confirm: Confirm
    goodbye: Goodbye
    refusal: Refusal
    waiting: Waiting
    batch: Batch
    draining: Draining
    payload_bytes: int
    payload: bytes
    def __init__(self, number: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., request: _Optional[_Union[Request, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., confirm: _Optional[_Union[Confirm, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., waiting: _Optional[_Union[Waiting, _Mapping]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., payload_bytes: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...
