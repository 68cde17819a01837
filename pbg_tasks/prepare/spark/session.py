"""Session of Spark, and the tables of a task in it."""

from __future__ import annotations

import atexit
import math
import os
import shutil
import sys
import threading
import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbg_tasks.errors import ConfigError, StorageError, one_line
from pbg_tasks.prepare.spark.files import OUTCOME, Outcome, StoredFile, arrow_schema, of_trace, raise_first
from pbg_tasks.prepare.sql.spark import PARSER, SETTINGS, SPARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from pbg_tasks.prepare.spark.writing import WriteTable


_PARTITIONS = "spark.sql.shuffle.partitions"
_BYTES = 4 << 20
"""Of Parquet: some 0.3 M edges."""


def lacking() -> list[str]:
    """Return what Spark lacks here, each with its repair.

    A session of Spark Connect (``SPARK_REMOTE``) takes no Java here.
    """
    found = []
    needed = ["pyspark", *(["grpc_status", "pandas"] if _remote() else [])]
    if missing := [name for name in needed if find_spec(name) is None]:
        found.append(f"{missing[0]} (pip install 'pbg-tasks[spark]')")
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java").exists() if home else shutil.which("java") is not None
    if not java and not _remote():
        found.append("Java 17 or newer (in JAVA_HOME or PATH)")
    return found


def _remote() -> str:
    """Return the URL of Spark Connect, empty without one."""
    return os.environ.get("SPARK_REMOTE", "")


class Tables:
    """Tables and views of one task in a session.

    Attributes:
        session: of Spark.
    """

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._kept: list[DataFrame] = []
        self._most = int(session.conf.get(_PARTITIONS) or 1)

    def expect(self, size: int) -> None:
        """Divide what follows for its size.

        Joins and groups have a task for each ``_BYTES`` of the files that are read, at most as many as
        ``spark.sql.shuffle.partitions`` is where the session begins.

        Args:
            size: bytes of these files; 0: unknown, so there are as many tasks as may be.
        """
        tasks = min(self._most, math.ceil(size / _BYTES)) or self._most
        self.session.conf.set(_PARTITIONS, str(tasks))

    def view(self, name: str, source: str | DataFrame) -> None:
        """Name a query or a frame, computed where it is read.

        Where a view of that name is there, Spark forgets all kept tables that were made from it.
        """
        frame = self.session.sql(source) if isinstance(source, str) else source
        frame.createOrReplaceTempView(name)

    def table(self, name: str, source: str | DataFrame) -> None:
        """Name a query or a frame, which executors compute now and keep.

        Spark knows a kept table again by its plan. As it numbers the ``WITH`` of a query from the first to the last, a
        plan with one is another in every query that has one more.

        Raises:
            RuntimeError: a query has ``WITH``; this is a bug.
        """
        if isinstance(source, str) and source.lstrip().startswith("WITH"):
            raise RuntimeError(f"table {name}: no later query would find it, because it has WITH: a bug")
        self.view(name, source)
        kept = self.session.table(name).persist()
        self._kept.append(kept)
        kept.count()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, which must be few."""
        return [tuple(row) for row in self.session.sql(query).collect()]

    def made(self, name: str, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
        """Make a view of rows of the driver."""
        self.view(name, self._local(rows, schema))

    def _local(self, rows: Sequence[tuple[Any, ...]], columns: str) -> DataFrame:
        """Return rows of the driver, as a part of the plan.

        No task makes them, so a join with a table that is empty takes none, either.
        """
        import pyarrow as pa

        schema = arrow_schema(columns)
        values = zip(*rows, strict=True) if rows else [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
        return self.session.createDataFrame(pa.table(arrays, schema=schema), columns)

    def spread(
        self,
        rows: Sequence[tuple[Any, ...]],
        schema: str,
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
        result: str,
        *,
        tasks: int | None = None,
    ) -> DataFrame:
        """Return what executors make of rows of the driver.

        There is a task for each row, or ``tasks`` of them. Each gets its rows by their numbers: ``repartition`` would
        give two to some tasks, and none to others.
        """
        numbered = self._local([(number, *row) for number, row in enumerate(rows)], f"id long, {schema}")
        numbers = self.session.range(0, len(rows), 1, max(1, tasks or len(rows)))
        return numbers.join(numbered.hint("broadcast"), "id").drop("id").mapInArrow(work, result)

    def outcomes(self, frame: DataFrame) -> list[Outcome]:
        """Run the work of a frame with the columns ``OUTCOME``.

        Raises:
            PbgError: the first error that executors met, by the name of its file.
        """
        columns = (column.split()[0] for column in OUTCOME.split(", "))
        return raise_first([Outcome(*row) for row in frame.select(*columns).collect()])

    def written(self, frame: DataFrame) -> dict[str, StoredFile]:
        """Run the work of a frame, and return its files."""
        return self.written_of(self.outcomes(frame))

    @staticmethod
    def written_of(outcomes: Iterable[Outcome]) -> dict[str, StoredFile]:
        """Return the files of reports, by name."""
        return {each.name: StoredFile(each.name, each.sha256, each.size) for each in outcomes}

    def write(self, query: str, table: WriteTable, file: str = "0") -> dict[str, StoredFile]:
        """Write a query's rows as a table, a file in each task.

        Args:
            query: of the rows, which come to the tasks as streams.
            table: to write.
            file: number of a row's file.

        Returns:
            The files, by name.
        """
        nothing, files = ", ".join(["NULL"] * len(table.schema)), len(table.names)
        rows = self.session.sql(
            f"SELECT *, {file} AS file, true AS kept FROM ({query}) "
            f"UNION ALL SELECT {nothing}, CAST(id AS INTEGER), false FROM range({files})"
        )
        return self.written(self._divided(rows, files).mapInArrow(table, OUTCOME))

    def _divided(self, rows: DataFrame, files: int) -> DataFrame:
        """Give the rows of each file to a task of its own.

        ``repartition`` divides rows by a hash, so it would give two files to some tasks, and none to others. Here it is
        given numbers whose hashes lead to one task each. (``repartitionById`` is of Spark 4.1.)
        """
        from pyspark.sql import functions

        if files == 1:
            return rows.repartition(1)
        # Of 32 numbers a task, one task in e^32 has none.
        tasks = f"SELECT pmod(hash(id), {files}) AS task, min(id) FROM range({32 * files}) GROUP BY task"
        numbers = [number for _, number in sorted(self.rows(tasks))]
        return rows.repartition(files, functions.expr(SPARK.item(numbers, "file")))

    def close(self) -> None:
        """Let the executors forget all tables."""
        for frame in self._kept:
            frame.unpersist()


_PATIENCE = 60
"""Seconds in which a server of Spark Connect has to answer."""
_PLAN_LOGGER = "org.apache.spark.sql.catalyst.util.StringUtils"
"""Logger that warns of each plan which ``SETTINGS`` cut, and of nothing else."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable of a driver that ``spark-submit`` began."""


class _Application:
    """Application of Spark in this process, and its tasks here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks, self._own = 0, False
        self._level: Any = None

    def open(self, name: str) -> SparkSession:
        """Return a session with views and settings of its own.

        While tasks are open, the driver does not warn of plans that are cut. An application of ``spark-submit`` stays
        until the process ends: YARN takes no second one of a driver, and Kubernetes removes the driver's service with
        the first, so that no executor would reach it.
        """
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with self._lock:
            builder = SparkSession.builder
            if SparkContext._active_spark_context is None:  # noqa: SLF001 - the active session is one of a thread only
                self._own = True
                builder = builder.appName(name)  # in one that is open, it would change the name
                if not sys.stderr.isatty():
                    builder = builder.config("spark.ui.showConsoleProgress", "false")  # a log has no line to draw on
            elif not self._tasks:
                self._own = False
            session = self._begun(builder)
            if self._own and _SUBMITTED in os.environ:
                self._own = False
                atexit.register(session.stop)
            if not self._tasks:
                log4j = _log4j(session)
                self._level = log4j.LogManager.getLogger(_PLAN_LOGGER).getLevel()
                log4j.core.config.Configurator.setLevel(_PLAN_LOGGER, log4j.Level.ERROR)
            self._tasks += 1
        return session

    def _begun(self, builder: SparkSession.Builder) -> SparkSession:
        """Return a new session.

        Raises:
            StorageError: no application began, as where no master answers Spark in a minute.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark import SparkConf, SparkContext

        try:
            return builder.getOrCreate().newSession()
        except Py4JJavaError as error:
            context = SparkContext._active_spark_context  # noqa: SLF001 - as above
            master = SparkConf().get("spark.master") if context is None else context.master
            if context is not None and self._own:
                context.stop()  # or a later task of this process would find it
            raise StorageError(
                f"Spark: no application began at {master}: {_reason(str(error))}; check spark.master (--master in "
                "PYSPARK_SUBMIT_ARGS), and that the master runs"
            ) from error

    def close(self, session: SparkSession) -> None:
        """End a task; the last one stops what the first began."""
        with self._lock:
            self._tasks -= 1
            if self._tasks:
                return
            if self._own:
                session.stop()
            else:
                _log4j(session).core.config.Configurator.setLevel(_PLAN_LOGGER, self._level)


def _reason(text: str) -> str:
    """Return why an application did not begin, without Java's stack."""
    if "stopped SparkContext" in text:
        return "no master answers there, or it ended the application"
    lines = text.splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or [line.removeprefix(": ") for line in lines if line.startswith(": ")] or lines)[-1]


def _log4j(session: SparkSession) -> Any:  # noqa: ANN401 - a package of Java
    return session._jvm.org.apache.logging.log4j  # noqa: SLF001 - Spark's own way to the driver's classes


_application = _Application()


@contextmanager
def open_tables(application: str) -> Iterator[Tables]:
    """Open a session with views and settings of its own.

    With ``SPARK_REMOTE`` it is one of that server of Spark Connect. Otherwise it is in an application as Spark itself
    finds it: that of ``spark-submit``, or a new one by Spark's own settings (``SPARK_CONF_DIR``,
    ``PYSPARK_SUBMIT_ARGS``), on this machine where these name no cluster. One that is open stays open, and its sessions
    as they are.

    Raises:
        ConfigError: Java or pyspark is missing.
        PbgError: of an executor, which ended a task with it.
        StorageError: Spark failed, as when executors, the driver or the server are lost, or there is no such cluster.
    """
    if found := lacking():
        raise ConfigError(f"resources.engine: spark: missing here: {'; '.join(found)}")
    # PySpark warns at its start, and wherever Python gets rows: here they are of Arrow, and nothing uses pandas.
    # The filter stays, because filters are the process's, and tasks of two threads end in any order.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.errors import PySparkException

    if _remote():
        from grpc import RpcError as ConnectionLost
    else:
        from py4j.protocol import Py4JError as ConnectionLost
    try:
        with _connected() if _remote() else _of_application(application) as session:
            for key, value in SETTINGS.items():
                session.conf.set(key, value)
            for key, value in PARSER.items():
                if session.conf.get(key, value) != value:
                    session.conf.set(key, value)
            tables = Tables(session)
            try:
                yield tables
            finally:
                tables.close()
    except (PySparkException, ConnectionLost, ConnectionError) as error:
        text = str(error)
        raise of_trace(text) or StorageError(f"Spark: {one_line(text)}; its own log has more") from error


@contextmanager
def _connected() -> Iterator[SparkSession]:
    """Open a session of Spark Connect, and release it.

    Its client would try to reach a server for ten minutes, in silence.
    """
    from grpc import FutureTimeoutError, channel_ready_future
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client import DefaultChannelBuilder

    server = DefaultChannelBuilder(_remote())
    with server.toChannel() as channel:
        try:
            channel_ready_future(channel).result(timeout=_PATIENCE)
        except FutureTimeoutError:
            raise StorageError(
                f"Spark: no server answers at {server.endpoint} within {_PATIENCE} s; check SPARK_REMOTE, and that the "
                "server of Spark Connect runs"
            ) from None
    session = SparkSession.builder.remote(_remote()).create()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _of_application(name: str) -> Iterator[SparkSession]:
    """Open a session in this process's application.

    The session that was active is so at the end, too.
    """
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    session = _application.open(name)
    try:
        yield session
    finally:
        try:
            if before is not None:
                before.createDataFrame([], "none int")  # makes it this thread's active session again
        finally:
            _application.close(session)
