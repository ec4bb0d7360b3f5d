"""Who a caller is, and what it may do: roles, tokens and identities, and the one decision on each request."""
