"""The HTTP side: routes, roles, watches, logs, and requested faults."""

from __future__ import annotations

import json
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tests.operators.kubernetes.double import schema
from tests.operators.kubernetes.double.logs import since
from tests.operators.kubernetes.double.objects import PLURALS, public, selected
from tests.operators.kubernetes.double.problems import RefusedError, conflict, invalid, not_found

if TYPE_CHECKING:
    from tests.operators.kubernetes.double.double import KubernetesDouble

GROUPS = {
    "": ("v1", {"pods", "services", "secrets", "events"}),
    "batch": ("v1", {"jobs"}),
    "jobset.x-k8s.io": ("v1alpha2", {"jobsets"}),
    "networking.k8s.io": ("v1", {"networkpolicies"}),
    "sparkoperator.k8s.io": ("v1beta2", {"sparkapplications"}),
}
PATH = re.compile(
    r"^(?:/api|/apis/(?P<group>[^/]+))/(?P<version>[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>log|status))?)?$"
)
VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


class Server(ThreadingHTTPServer):
    """HTTP server of one double."""

    daemon_threads = True
    double: KubernetesDouble


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        """Log nothing."""

    def handle_any(self) -> None:
        double = self.server.double
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size) or b"null")
        url = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        double.requests.append((self.command, url.path, query))
        try:
            double.before(self.command, url.path)
            found = discovery(url.path)
            if found is not None:
                self._send(200, found)
            else:
                self._answer(url.path, query, body)
        except RefusedError as problem:
            self._send(problem.code, problem.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_PATCH = do_DELETE = do_PUT = handle_any

    def _answer(self, path: str, query: dict, body: dict | None) -> None:
        route = PATH.match(path)
        version, plurals = GROUPS.get(route["group"] or "", ("", ())) if route else ("", ())
        if route is None or route["plural"] not in plurals or route["version"] != version:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        self._allow(route, query)
        plural, namespace, name = route["plural"], route["namespace"], route["name"]
        match self.command:
            case "GET" if route["sub"] == "log":
                self._log(namespace, name, query)
            case "GET" if name:
                self._send(200, self.server.double.objects.get(plural, namespace, name))
            case "GET" if query.get("watch", "").lower() in {"1", "true"}:
                self._watch(plural, namespace, query)
            case "GET":
                self._send(200, self._list(route["group"], plural, namespace, query))
            case "POST":
                self._send(201, self._create(plural, namespace, body))
            case "PATCH":
                self._send(200, self._patch(plural, namespace, name, body))
            case "DELETE":
                self._send(200, self._delete(plural, namespace, name, query, body or {}))
            case _:
                raise invalid(405, "MethodNotAllowed", "the double cannot do that")

    def _allow(self, route: re.Match, query: dict) -> None:
        double = self.server.double
        if double.token is not None and self.headers.get("Authorization") != f"Bearer {double.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        verb = VERBS.get(self.command) or (
            "get" if route["name"] else "watch" if query.get("watch", "").lower() in {"1", "true"} else "list"
        )
        resource = route["plural"] + (f"/{route['sub']}" if route["sub"] else "")
        if not double.allowed(route["group"] or "", resource, verb):
            message = f'{resource} is forbidden: User "double" cannot {verb} resource "{resource}"'
            raise RefusedError(403, "Forbidden", message)

    def _create(self, plural: str, namespace: str, body: dict) -> dict:
        if body.get("kind") != PLURALS[plural]:
            raise invalid(400, "BadRequest", f"the object provided is no {PLURALS[plural]}")
        schema.check(body)
        return self.server.double.objects.create(plural, namespace, body)

    def _patch(self, plural: str, namespace: str, name: str, body: dict) -> dict:
        strategic = plural == "pods" and self.headers["Content-Type"] == "application/strategic-merge-patch+json"
        if not strategic and self.headers["Content-Type"] != "application/merge-patch+json":
            raise invalid(415, "UnsupportedMediaType", "the double knows merge patches only")
        return self.server.double.objects.patch(plural, namespace, name, body)

    def _delete(self, plural: str, namespace: str, name: str, query: dict, body: dict) -> dict:
        objects = self.server.double.objects
        with objects.changed:
            found = objects.live(plural, namespace, name)
            asked = body.get("preconditions", {}).get("uid")
            if asked is not None and asked != found["metadata"]["uid"]:
                raise conflict(f"Precondition failed: UID in precondition: {asked}")
            if plural == "pods":
                grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
                if grace is not None:
                    found["double"]["grace"] = int(grace)
                self.server.double.controller.delete(found)
            else:
                objects.remove(plural, namespace, name)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _list(self, group: str | None, plural: str, namespace: str | None, query: dict) -> dict:
        objects = self.server.double.objects
        with objects.changed:
            found = objects.everything(plural, namespace)
            left_out = re.findall(r"status\.phase!=(\w+)", query.get("fieldSelector", ""))
            found = [item for item in found if item.get("status", {}).get("phase") not in left_out]
            items = [public(item) for item in found if selected(item, query.get("labelSelector", ""))]
            version = objects.version
        return {
            "kind": f"{PLURALS[plural]}List",
            "apiVersion": f"{group}/{GROUPS[group][0]}" if group else "v1",
            "metadata": {"resourceVersion": str(version)},
            "items": items,
        }

    def _watch(self, plural: str, namespace: str | None, query: dict) -> None:
        objects = self.server.double.objects
        seen = int(query.get("resourceVersion") or objects.version)
        deadline = time.monotonic() + float(query.get("timeoutSeconds", 60))
        self._begin("application/json")
        while time.monotonic() < deadline and not self.server.double.stopping:
            with objects.changed:
                news = [entry for entry in objects.history if entry[0] > seen]
                if not news:
                    objects.changed.wait(0.1)
            for version, kind, (where, space, name), thing in news:
                seen = version
                if query.get("fieldSelector", f"metadata.name={name}") != f"metadata.name={name}":
                    continue
                if where == plural and namespace in {None, space} and selected(thing, query.get("labelSelector", "")):
                    self._chunk(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
        self._chunk(b"")

    def _log(self, namespace: str, name: str, query: dict) -> None:
        double = self.server.double
        double.objects.get("pods", namespace, name)
        lines = double.node.logs.get(name)
        if lines is None:
            waiting = f'container "train" in pod "{name}" is waiting to start: ContainerCreating'
            raise invalid(400, "BadRequest", waiting)
        self._begin("text/plain")
        at, start = 0, query.get("sinceTime")
        while True:
            for line in lines[at:]:
                at += 1
                if start is None or since(line, start):
                    self._chunk((line if query.get("timestamps") == "true" else line.partition(" ")[2]).encode())
            if query.get("follow") != "true" or double.stopping:
                break
            try:
                ended = double.objects.get("pods", namespace, name)["status"]["phase"] in {"Succeeded", "Failed"}
            except RefusedError:
                ended = True
            if ended and at == len(lines):
                break
            time.sleep(0.02)
        self._chunk(b"")

    def _begin(self, content: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _send(self, code: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def discovery(path: str) -> dict | None:
    """Answer kubectl's first requests."""
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0-double"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        named = [(group, version) for group, (version, _) in GROUPS.items() if group]
        groups = [
            {"name": group, "versions": [preferred], "preferredVersion": preferred}
            for group, version in named
            for preferred in [{"groupVersion": f"{group}/{version}", "version": version}]
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for group, (version, plurals) in GROUPS.items():
        if path == (f"/apis/{group}/{version}" if group else f"/api/{version}"):
            resources = [
                {
                    "name": plural,
                    "singularName": PLURALS[plural].lower(),
                    "namespaced": True,
                    "kind": PLURALS[plural],
                    "verbs": ["create", "delete", "get", "list", "patch", "watch"],
                }
                for plural in sorted(plurals)
            ]
            where = f"{group}/{version}" if group else version
            return {"kind": "APIResourceList", "groupVersion": where, "resources": resources}
    if path.startswith("/openapi"):
        raise not_found("openapi", path)
    return None
