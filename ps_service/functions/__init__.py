"""Functions: what of torch trainers may call by name, and what is checked before it runs.

`listing` and `groups` say which functions there are; `arguments` checks what they are given; `guard` checks every
operation that they consist of, by `operations` (sizes of results) and `values` (indices and divisors). `layers` and
`constructors` do the same for modules of torch that trainers make.
"""
