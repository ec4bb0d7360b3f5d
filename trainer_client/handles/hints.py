"""Says what to use instead of names of torch that a handle does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ps_wire.close_names import hint
from ps_wire.decorators import is_remote
from ps_wire.tables.names import SHARD

if TYPE_CHECKING:
    from ps_wire.v1.operations_pb2 import ObjectInfo

_PLACES = {"to", "cuda", "cpu", "half", "float", "double", "bfloat16"}
_GRADIENTS = {"grad", "zero_grad"}

MODULE: Final = (
    "RemoteModule, a handle to a module on an owner (replica() makes a module of this process with its parameters; a "
    "module of your own may call the handle in its forward)"
)
"""What torch calls a handle that was put into `nn.Sequential`, before `is not a Module subclass`."""

PARAMETER: Final = (
    "RemoteParameter, a handle to a parameter on an owner (optimizer() of the client makes an optimizer there)"
)
"""What torch calls a handle that an optimizer of this process was given."""

OPTIMIZER: Final = "DistributedOptimizer, of which ps.scheduler(…) makes a learning-rate scheduler on its owners,"
"""What torch calls an optimizer that a scheduler of this process was given, before `is not an Optimizer`."""


def title(info: ObjectInfo) -> str:
    """The class and the name of an object."""
    return f"{info.class_name} {info.name!r}" if info.name else info.class_name


def of_object(
    name: str,
    class_name: str,
    methods: Iterable[str],
    parameters: Iterable[str] = (),
    unmarked: Iterable[str] = (),
    own: type | str = "",
) -> str:
    """The message for a name that a handle to an object, or to a module with these parameters, does not have. The
    `unmarked` are methods of its class that trainers may not call. `own` is the class that this program has given to
    make it, if it has given one."""
    methods = tuple(methods)
    told = f"{class_name} offers no {name!r}, only {', '.join(methods) or 'none'}"
    if name in unmarked:
        return f"{told}: its class has that method without a mark. Mark it with @remote, and start the owner again"
    told += hint(name, methods)
    method = _method(own, name) if isinstance(own, type) else None
    if method is not None and is_remote(method):
        return f"{told}. It is @remote in this program: the owner has loaded an older file, so restart it"
    if method is not None:
        return f"{told}. This program has it without @remote: mark it, and restart the owner"
    if name in _PLACES:
        return f"{told}. Its device and dtype are those of the owner: `ps-service serve --device`, or the constructor"
    if name in _GRADIENTS:
        return f"{told}. Gradients belong to a pass and end with it: `ctx.get_gradients()`, `ctx.clip_grad_norm(…)`"
    if any(parameter == name or parameter.startswith(f"{name}.") for parameter in parameters):
        return (
            f"{told}. A handle has no submodules or tensors: `parameters()` gives handles to train, `state_dict()` the "
            "values"
        )
    return told


def _method(cls: type, name: str) -> object | None:
    """The method of a class of a program that could be called from elsewhere; not one that torch has, too."""
    having = [each for each in cls.__mro__ if name in vars(each)]
    if not having or name.startswith("_") or having[-1].__module__.partition(".")[0] == "torch":
        return None
    found: object = vars(having[0])[name]
    return found if callable(found) else None


def of_parameter(name: str) -> str:
    """The message for a name that a handle to a parameter does not have."""
    if name in _GRADIENTS:
        return (
            f"a handle to a parameter has no {name!r}. Gradients belong to a pass and end with it: "
            "`ctx.get_gradients()`, `ctx.clip_grad_norm(…)`"
        )
    return f"a handle to a parameter has no {name!r}; its value is on the owner, and `to_here()` fetches a copy"


def again(class_name: str, name: str, is_module: bool) -> str:
    """The call that gives a handle again to an object that an owner has lost; anonymous if it has no name."""
    if class_name == SHARD:
        return f"ps.table({name!r}, …)"
    if not is_module and class_name.startswith("torch.optim."):
        return "ps.scheduler(…)" if class_name.startswith("torch.optim.lr_scheduler.") else "ps.optimizer(…)"
    called = f", name={name!r}" if name else ""
    return f"ps.{'module' if is_module else 'create'}({class_name!r}, …{called})"


def of_optimizer(name: str) -> str:
    """The message for a name that a distributed optimizer does not have."""
    if name == "zero_grad":
        return "there is nothing to zero: gradients belong to a pass (`ps.context()`), and end with it"
    if name == "param_groups":
        return (
            "the options are on the owners: `opt.set_options(lr=…)` changes them, `opt.state_dict()` has them, and "
            "`ps.scheduler(torch.optim.lr_scheduler.StepLR, opt, …)` makes a scheduler there"
        )
    return f"a DistributedOptimizer has no {name!r}"
