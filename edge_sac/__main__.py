"""`python -m edge_sac` is `edge-sac`."""

from edge_sac.cli import main

main()
