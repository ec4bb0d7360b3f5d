"""Sessions of trainers, their cached answers, admission of requests while an owner drains, and administration."""
