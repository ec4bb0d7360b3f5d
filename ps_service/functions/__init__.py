"""The torch functions that trainers may call by name, and the checks that run before each call.

`groups` and `listing` list the functions. `guard` checks the arguments of a call, for some with `arguments`, and every
operation that runs inside it, by `operations` (sizes of results) and `values` (indices and divisors), also in layers
and constructors of modules. `layers` says which calls of layers need no guard.
"""
