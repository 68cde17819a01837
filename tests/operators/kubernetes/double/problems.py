"""A refusal, in the words of the API."""

from __future__ import annotations


class RefusedError(Exception):
    """An answer of class 4xx or 5xx.

    Attributes:
        status: the Status object that is its body.
    """

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


def invalid(code: int, reason: str, message: str) -> RefusedError:
    return RefusedError(code, reason, message)


def not_found(plural: str, name: str) -> RefusedError:
    return RefusedError(404, "NotFound", f'{plural} "{name}" not found')


def conflict(message: str) -> RefusedError:
    return RefusedError(409, "Conflict", message)
