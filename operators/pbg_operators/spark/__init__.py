"""Commands as applications of Spark, which operators of Airflow's providers start."""
