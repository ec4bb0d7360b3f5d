from ps_wire.v1 import directory_pb2 as _directory_pb2
from ps_wire.v1 import frames_pb2 as _frames_pb2
from ps_wire.v1 import operations_pb2 as _operations_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
