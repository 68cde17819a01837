"""``StoreHook``: a store of graphs by its Airflow connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

from pbg_operators.connection import with_store
from pbg_tasks.config.airflow import CONNECTION
from pbg_tasks.errors import AccessError, ConfigError, PbgError

if TYPE_CHECKING:
    from pbg_tasks.storage import Store


class StoreHook(BaseHook):
    """Open a store with the keys and endpoint of a connection.

    Args:
        store_conn_id: the connection, of type ``pbg`` or ``aws``. Without one of the default name, the process finds
            keys and endpoint in its environment.
    """

    conn_name_attr = "store_conn_id"
    default_conn_name = CONNECTION
    conn_type = "pbg"
    hook_name = "PBG store"

    def __init__(self, store_conn_id: str = CONNECTION) -> None:
        super().__init__()
        self.store_conn_id = store_conn_id

    def get_conn(self) -> Store:
        """Return the store that the connection names in its field *Store*.

        Raises:
            ConfigError: it names none, or none that can be opened.
        """
        place = self.get_connection(self.store_conn_id).extra_dejson.get("store")
        if not place:
            raise ConfigError(f"connection {self.store_conn_id!r}: fill in Store, such as s3://bucket/prefix")
        return self.open(str(place))

    def open(self, url: str) -> Store:
        """Return any store that the connection has the keys of.

        Args:
            url: ``s3://bucket/prefix``, a directory, or what an installed package opens.

        Raises:
            ConfigError: there is no such kind of store.
            AirflowFailException: the connection has settings that cannot be used.
        """
        from pbg_tasks.storage import open_store  # loads an AWS SDK

        return open_store(url, environment=with_store({}, self.store_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Read and write the store; return whether that worked, and a sentence.

        It writes a tiny object below ``.probe/`` and removes it, with the conditions on which runs rely.
        """
        from pbg_tasks.storage.probe import probe

        try:
            store = self.get_conn()
            next(iter(store.list("")), None)
        except (PbgError, AirflowException) as error:
            return False, str(error)
        try:
            probe(store)
        except AccessError as error:
            return True, f"{store.url} can be read, but not written, which is enough for pages and readers: {error}"
        except PbgError as error:
            return False, str(error)
        return True, f"{store.url} can be read and written, and keeps the conditions of writes"
