"""Floor 1: what an owner holds. No grpc, no event loop.

allowlist             which classes trainers may name
objects, registry     hosted objects, their names and their reference counts
rrefs                 how hosted code sees handles
cells, skins, entry   how many passes read a module at once while optimizers step
contexts              recorded forwards and gradients, one context per pass
optimizers            optimizers and schedulers that run where the parameters live
sessions, journal     who is connected, and the answers that make retries exact
counters              what `status` and metrics report
"""
