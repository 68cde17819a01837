"""The Airflow layer: operators that run the ``pbg`` command, and the nightly DAG made of them.

Nothing here imports torch, h5py, boto3, numpy, duckdb, pyarrow or s3fs: the scheduler parses these modules.
"""
