"""Sessions of trainers, the answers that are kept for them, admission while an owner drains, and administration."""
