"""Tests of identities, roles and what belongs to whom, with real owners and trainers."""
