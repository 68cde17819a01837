"""Airflow DAGs of the graph specs of a folder."""
# Written by `pbg dag-file`, sha256 0e34e14a6af8481a856253abb84634d418e4710b6e8ffdfe0490d956cb89b6d9

from pathlib import Path

from pbg_operators import build_dags

globals().update(build_dags(Path(__file__).parent / "../examples/graphs"))
