"""Prints the page that lists the functions: `python -m ps_service.functions > docs/torch-functions.md`."""

from ps_service.functions.listing import page

print(page(), end="")
