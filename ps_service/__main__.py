"""`python -m ps_service` is `ps-service`."""

from ps_service.cli.commands import main

main()
