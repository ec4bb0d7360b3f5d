"""The attacks, by what they are aimed at. Importing this package lists all of them."""

from tests.attack.attacks import names, sessions, tokens, web

MODULES = (sessions, names, tokens, web)
