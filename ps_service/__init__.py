"""The owner: a long-lived service that hosts models and the optimizers that train them.

Modules to be hosted need only this:

    from ps_service import RRef, hosted, remote

The floors, from the bottom (an import may only point down):

    state     what an owner holds
    engine    what it does
    rpc       how it is asked
    server    one owner as a gRPC server; `config` and `cli` stand on top
"""

from ps_service.state.rrefs import RRef
from ps_wire.marks import async_execution, hosted, remote
from ps_wire.records import by_value

__all__ = ["RRef", "async_execution", "by_value", "hosted", "remote"]
