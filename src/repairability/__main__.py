"""`python -m repairability` is the command `repairability`."""

from repairability.cli import main

main()
