"""`python -m ps_service` runs `ps-service`."""

from ps_service.cli.entry import main

main()
