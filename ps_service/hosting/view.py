"""A second, shallow structure of an ordinary module, in which leaves stand in the place of the parameters."""

from __future__ import annotations

import sys
import weakref
from operator import gt
from typing import TYPE_CHECKING, Any

from torch import nn

from ps_service.hosting.contents import Dicts
from ps_service.hosting.running_statistics import Guarded

if TYPE_CHECKING:
    from ps_service.hosting.internals import Internals
    from ps_service.hosting.leaves import Leaf, SharedLeaves
    from ps_service.parameters.uses import LeafUses


class View:
    """A shallow structure that the calls of one mode share.

    Its modules are of the same classes as the originals, with the same attributes. Tied parameters stay tied, and
    shared layers shared. Without `training`, the parts have the modes that those of the module have now.

    `modules` are those of the structure, each with the one that it was made from. `running` is the number of calls that
    run on it, and `version` that of its leaves. `follows` tells whether the attributes of the original are those that
    it was made with.
    """

    def __init__(self, module: nn.Module, training: bool | None, internals: Internals) -> None:
        self.running = 0
        self.version = -1
        # For each parameter, the dicts of modules in which it stands.
        self._places: list[list[tuple[dict[str, Any], str]]] = [[] for _ in module.parameters()]
        positions = {id(each): i for i, each in enumerate(module.parameters())}
        originals = list(module.modules())
        twins: dict[int, nn.Module] = {id(each): object.__new__(type(each)) for each in originals}
        for original in originals:
            attributes = twins[id(original)].__dict__
            attributes.update(original.__dict__)
            attributes["_parameters"] = parameters = dict.fromkeys(original._parameters)
            attributes["_modules"] = {
                name: None if each is None else twins[id(each)] for name, each in original._modules.items()
            }
            for name, parameter in original._parameters.items():
                if parameter is not None:
                    self._places[positions[id(parameter)]].append((parameters, name))
        self._own = list(twins.values())
        self.module = self._own[0]
        self.modules = list(zip(self._own, originals, strict=True))
        if training is not None:
            self.module.train(training)
        for made, original in self.modules:
            if (lock := internals.norm_locks.get(id(original))) is not None:
                made.__dict__["forward"] = Guarded(made, lock)
        self._recurrent = [i for i, each in enumerate(self._own) if isinstance(each, nn.RNNBase)]
        lists = [id(self._own[i]._parameters) for i in self._recurrent]
        # A leaf is in the dict of a module, in what is known of that dict, and in the list of a recurrent layer.
        self._references_to = [sum(3 if id(place) in lists else 2 for place, _ in each) for each in self._places]
        self._present: list[Leaf | None] = [None] * len(self._places)
        self.follows = Dicts([each.__dict__ for each in originals]).are_same

    def count_references(self) -> None:
        """Counts the references to its modules, before the first call runs on it."""
        self._counted = [*self._own, *(each._parameters for each in self._own)]
        self._references = list(map(sys.getrefcount, self._counted))

    def put(self, leaves: SharedLeaves) -> None:
        """Sets the leaves that have been replaced since it had some. No call runs on it."""
        for i, leaf in enumerate(leaves.current.leaves):
            if self._present[i] is leaf:
                continue
            self._present[i] = leaf
            for place, name in self._places[i]:
                place[name] = leaf.tensor
            leaves.uses.expect(i, self._references_to[i])
        for layer in map(self._own.__getitem__, self._recurrent):
            names: Any = layer._flat_weights_names
            weights = [getattr(layer, name, None) for name in names]
            layer.__dict__["_flat_weights"] = weights
            layer.__dict__["_flat_weight_refs"] = [None if each is None else weakref.ref(each) for each in weights]
        self.version = leaves.version
        self._begun = Dicts([each for made in self._own for each in (made.__dict__, made._parameters, made._modules)])

    def leave(self, uses: LeafUses) -> None:
        """Its references to the leaves are not expected any more, because it is dropped: they would hide others."""
        for i, leaf in enumerate(self._present):
            if leaf is not None and leaf.tensor is uses.leaves[i]:
                uses.expect(i, -self._references_to[i])

    def is_referred(self) -> bool:
        """Whether other objects, such as closures in an open graph, refer to its modules or dicts of parameters."""
        return any(map(gt, map(sys.getrefcount, self._counted), self._references))

    def changes(self) -> list[tuple[nn.Module, str, Any]]:
        """What calls have set or deleted: a module, the name of the attribute, and the value or `ABSENT`. The modules
        are the originals. The name is empty for a parameter or submodule."""
        if self._begun.are_same():
            return []
        return [(self.modules[i // 3][1], name if i % 3 == 0 else "", new) for i, name, new in self._begun.changes()]

    def private_ids(self) -> set[int]:
        """`id()` of its modules and leaves."""
        leaves = (id(leaf.tensor) for leaf in self._present if leaf is not None)
        return {*map(id, self._own), *leaves}
