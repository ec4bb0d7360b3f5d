"""Policies, which say when the gradients of trainers count, and what becomes of stale ones."""

from ps_wire.policies import Apply, Async, BoundedStaleness, Compensate, Policy, Quorum, Reject, Scale, Sync

__all__ = ["Apply", "Async", "BoundedStaleness", "Compensate", "Policy", "Quorum", "Reject", "Scale", "Sync"]
