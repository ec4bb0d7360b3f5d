"""Quotas: how much of an owner an identity, a namespace, and all together may use, and what they use."""
