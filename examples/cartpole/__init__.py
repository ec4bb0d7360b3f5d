"""Observers play CartPole, one agent learns from all of them; ``python -m examples.cartpole`` runs it all."""
