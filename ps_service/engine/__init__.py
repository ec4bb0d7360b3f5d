"""Floor 2: what an owner does, as plain functions over state. No grpc, no messages.

engine        the parts of an owner, put together
compute       the threads that torch work runs in
hosting       create, attach, release, delete
frame         what one running call borrows
calling       calls of hosted methods, recorded or not
passes        backward, gradients and the end of a context
optimization  optimizers, schedulers and their state
report        what `status` tells
"""
