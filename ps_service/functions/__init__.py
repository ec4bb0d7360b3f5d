"""The torch functions that trainers may call by name, and the checks that run before each call.

`listing` and `groups` list the functions. `arguments` checks the arguments of a call. `guard` checks every operation
that runs inside it, by `operations` (sizes of results) and `values` (indices and divisors). `layers` and
`constructors` do the same for torch modules that trainers create.
"""
