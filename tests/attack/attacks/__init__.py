"""The attacks, by what they are aimed at. Importing this package lists all of them."""

from tests.attack.attacks import files, floods, lines, names, quotas, rights, sessions, tokens, web

MODULES = (sessions, names, rights, tokens, lines, web, files, floods, quotas)
