"""Application of the pages that asks for no permission."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI


def permitted_app() -> FastAPI:
    """Return the application without its permissions.

    It is a separate one: what is changed here must not reach any other.
    """
    from pbg_operators.internals import GetUserDep
    from pbg_operators.plugin.app import make_app

    app = make_app.__wrapped__()
    for route in app.routes:
        app.dependency_overrides |= {each.dependency: lambda: None for each in route.dependencies}
    (user,) = GetUserDep.__metadata__
    app.dependency_overrides[user.dependency] = lambda: None
    return app
