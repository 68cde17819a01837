"""Endpoints that requests may go to, and endpoints that are refused beforehand."""

from __future__ import annotations

import socket
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pbg_tasks.errors import ConfigError, PbgError, StorageError
from pbg_tasks.storage import endpoint, open_store
from pbg_tasks.storage.columnar import filesystem_for, list_files
from pbg_tasks.storage.s3_client import connect

NAMES = {
    "minio": ["172.18.0.2"],
    "store.internal.example": ["10.2.3.4", "fd12:3456::7"],
    "split.example": ["10.0.0.1", "93.184.216.34"],
    "public.example": ["93.184.216.34"],
    "rebound.example": ["169.254.169.254"],
    "rebound-among-others.example": ["93.184.216.34", "169.254.170.2"],
    "rebound-by-six.example": ["fd00:ec2::254"],
    "rebound-mapped.example": ["::ffff:169.254.169.254"],
    "shared.example": ["100.64.0.7"],
}
"""A double of a name server: no real one here has names at addresses of metadata services."""

GOOD = [
    "https://s3.eu-central-1.amazonaws.com",
    "https://public.example",
    "https://public.example:9000",
    "https://public.example/storage/v1/s3",
    "https://minio:9000",
    "http://127.0.0.1:8333",
    "http://127.1.2.3",
    "http://localhost:9000",
    "http://[::1]:9000",
    "http://10.1.2.3:9000",
    "http://172.16.0.1",
    "http://172.31.255.254",
    "http://192.168.1.1:9000",
    "http://[fd12:3456::7]:9000",
    "http://[::ffff:10.1.2.3]:9000",
    "http://minio:9000",
    "http://minio.:9000",
    "HTTP://MINIO:9000",
    "http://store.internal.example",
]
UNENCRYPTED = [
    "http://public.example",
    "http://93.184.216.34:9000",
    "http://[2606:2800:220:1::1]",
    "http://[::ffff:93.184.216.34]",
    "http://split.example",
    "http://shared.example",
    "http://100.64.0.7",
    "http://172.32.0.1",
    "http://0x5db8d822",
    "http://0.0.0.0:9000",
]
METADATA = [
    "http://169.254.169.254",
    "https://169.254.169.254",
    "http://169.254.169.254/latest/meta-data",
    "http://169.254.169.254.:80",
    "http://169.254.170.2/v2/credentials",
    "http://169.254.170.23",
    "http://169.254.1.1",
    "http://2852039166",
    "http://0xa9fea9fe",
    "http://025177524776",
    "http://0251.0376.0251.0376",
    "http://0xa9.0xfe.0xa9.0xfe",
    "http://169.254.43518",
    "http://[fd00:ec2::254]",
    "http://[fd00:ec2:0::23]",
    "http://[fd20:ce::254]",
    "http://[fe80::1]",
    "http://[::ffff:169.254.169.254]",
    "https://[::ffff:a9fe:a9fe]",
    "http://[::169.254.169.254]",
    "http://[2002:a9fe:a9fe::1]",
    "http://[64:ff9b::a9fe:a9fe]",
    "http://100.100.100.200",
    "https://168.63.129.16",
    "http://192.0.0.192",
    "http://rebound.example",
    "https://rebound.example",
    "https://rebound.example.",
    "http://rebound-among-others.example",
    "https://rebound-by-six.example",
    "https://rebound-mapped.example",
]
MALFORMED = [
    "https://minio:99999",
    "minio:9000",
    "//minio:9000",
    "ftp://minio",
    "file:///etc/passwd",
    "http://",
    "http://minio/?x=1",
    "http://minio/#x",
    "http://minio:port",
    "http://169.254.169%2e254",
    "http://\uff11\uff16\uff19.254.169.254",
    "http://169\u3002254\u3002169\u3002254",
    "http://169.254.169.254\\.minio:9000",
    "http://minio\n.public.example",
    "http://[fe80::1%25eth0]",
    "http://..",
]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Resolve the names above only, with invalid credentials and without a proxy."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", endpoint.ALLOWED_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "no-secret")
    real = socket.getaddrinfo

    def answer(host, *arguments, **options):
        name = host.rstrip(".")
        if name in NAMES:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in NAMES[name]]
        if name == "localhost" or name[:1].isdigit():
            return real(host, *arguments, **options)
        if name.endswith("amazonaws.com"):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("52.219.1.1", 0))]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    return monkeypatch


def allowed(url, environment=None):
    """Check a URL's form, then its addresses, as a client does."""
    endpoints = endpoint.Endpoints(environment)
    endpoints.check_form(url, "AWS_ENDPOINT_URL")
    endpoints.check_addresses(url)


@pytest.mark.parametrize("url", GOOD)
def test_encrypted_or_near_endpoint_is_allowed(url):
    allowed(url)


@pytest.mark.parametrize("url", UNENCRYPTED)
def test_unencrypted_far_endpoint_is_refused_unless_allowed(url):
    with pytest.raises(ConfigError, match=r"not encrypted and not on a private network; .* PBG_ALLOW_HTTP_ENDPOINT="):
        allowed(url)
    host = url.removeprefix("http://").strip("[]").removesuffix(":9000")
    allowed(url, {endpoint.ALLOWED_VARIABLE: f"other.example, {host.upper()}"})
    with pytest.raises(ConfigError, match="not encrypted"):
        allowed(url, {endpoint.ALLOWED_VARIABLE: "other.example"})


@pytest.mark.parametrize("url", METADATA)
def test_metadata_service_is_always_refused(url):
    host = endpoint._host(url)
    for environment in ({}, {endpoint.ALLOWED_VARIABLE: host}):
        with pytest.raises(ConfigError, match="a metadata service of a cloud"):
            allowed(url, environment)


@pytest.mark.parametrize("url", MALFORMED)
def test_malformed_endpoint_is_refused(url):
    with pytest.raises((ConfigError, OSError)):
        allowed(url)


@pytest.mark.parametrize("url", [*METADATA, *UNENCRYPTED])
def test_refused_endpoint_gets_no_request(monkeypatch, url):
    """Check both clients up to the error that a user sees."""
    connected = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: connected.append(address))
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(ConfigError, match=r"private network|metadata service"):
        open_store("s3://bucket/x").head("a")
    with pytest.raises(ConfigError, match=r"private network|metadata service"):
        list_files("s3://bucket/x/*.parquet")
    assert connected == []


@pytest.mark.parametrize("variable", endpoint.ENDPOINT_VARIABLES)
@pytest.mark.parametrize(
    "url",
    [
        "http://canary:canary@127.0.0.1:9",
        "http://canary@127.0.0.1:9",
        "https://canary:ca/na+ry@h",
        "canary:canary@127.0.0.1:9",
        "http://can ary:can\nary@h",
        "http://127.0.0.1:9/?X-Amz-Signature=canary",
        "http://127.0.0.1:9#canary",
    ],
)
def test_credentials_in_endpoint_are_refused_by_name(monkeypatch, variable, url):
    monkeypatch.setenv(variable, url)
    for use in (lambda: open_store("s3://bucket/x"), lambda: list_files("s3://bucket/x/*.parquet")):
        with pytest.raises(ConfigError, match=variable) as caught:
            use()
        assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_endpoint_of_profile_is_checked_and_not_shown(monkeypatch, tmp_path):
    config = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "p")
    for url in ("http://canary:canary@127.0.0.1:9", "http://169.254.169.254", "canary:canary@h"):
        config.write_text(f"[profile p]\nendpoint_url = {url}\n")
        for use in (lambda: open_store("s3://bucket/x"), lambda: list_files("s3://bucket/x/*.parquet")):
            with pytest.raises(ConfigError, match=r"profile|PROFILE") as caught:
                use()
            assert "canary" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("url", ["http://unknown.example:9", "https://unknown.example:9"])
def test_unknown_name_is_a_storage_error(monkeypatch, url):
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    for use in (lambda: open_store("s3://bucket/x").head("a"), lambda: list_files("s3://bucket/x/*.parquet")):
        with pytest.raises(StorageError) as caught:
            use()
        assert (caught.value.kind, caught.value.retryable) == ("storage", True)


def test_proxy_may_resolve_name_that_is_unknown_here(monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    allowed("https://unknown.example")
    allowed("http://unknown.example", {endpoint.ALLOWED_VARIABLE: "unknown.example"})
    with pytest.raises(OSError, match="not known"):
        allowed("http://unknown.example")
    with pytest.raises(ConfigError, match="metadata service"):
        allowed("https://rebound.example")


def test_host_is_resolved_once_a_client(monkeypatch):
    asked, answer = [], socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **_: asked.append(host) or answer(host, *rest))
    endpoints = endpoint.Endpoints()
    for _ in range(3):
        endpoints.check_addresses("http://minio:9000/bucket/key")
    assert asked == ["minio"]


class Redirecting(BaseHTTPRequestHandler):
    """Handler that redirects every request to the given address."""

    def _answer(self):
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        self.send_header("Location", f"{self.server.target}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_PUT = _answer

    def log_message(self, *_):
        pass


@pytest.fixture
def servers():
    """Two servers: the first redirects to the second."""
    both = [ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) for _ in range(2)]
    for server in both:
        server.asked, server.status, server.target = [], 404, ""
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield both
    for server in both:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", [301, 307])
def test_redirect_to_another_host_is_not_followed(monkeypatch, servers, status):
    first, second = servers
    first.status, first.target = status, f"http://localhost:{second.server_port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{first.server_port}")
    store = open_store("s3://bucket/x")
    for use in (
        lambda: store.head("a"),
        lambda: store.get("a"),
        lambda: store.put("a", b"x"),
        lambda: list_files("s3://bucket/x/*.parquet"),
    ):
        before = len(first.asked)
        with pytest.raises(PbgError):
            use()
        assert len(first.asked) > before
    assert second.asked == []


def test_region_redirect_stays_at_the_endpoint(monkeypatch, servers):
    first, second = servers
    first.status, first.target = 307, f"http://localhost:{second.server_port}"
    headers = Redirecting.send_header
    monkeypatch.setattr(
        Redirecting,
        "send_header",
        lambda self, name, value: [headers(self, name, value), headers(self, "x-amz-bucket-region", "eu-west-1")][0],
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{first.server_port}")
    with pytest.raises(StorageError):
        open_store("s3://bucket/x").get("a")
    assert len(first.asked) >= 2
    assert second.asked == []


def test_given_variables_override_those_of_the_process(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://169.254.169.254")
    client = connect({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert client.meta.endpoint_url == "http://127.0.0.1:9"


def test_given_authority_is_that_of_both_clients(tmp_path):
    """The triggerer, which opens several stores, has no such variable."""
    given = {"AWS_ENDPOINT_URL": "https://127.0.0.1:9", "AWS_CA_BUNDLE": str(tmp_path / "none.pem")}
    assert connect(given)._endpoint.http_session._verify == given["AWS_CA_BUNDLE"]
    assert filesystem_for("s3://bucket/x", given).client_kwargs == {"verify": given["AWS_CA_BUNDLE"]}


def test_filesystems_of_many_connections_are_kept():
    """A triggerer lists for one graph after another."""
    given = [{"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"} for port in range(9001, 9009)]
    first, again = ([filesystem_for("s3://bucket/x", each) for each in given] for _ in range(2))
    assert list(map(id, first)) == list(map(id, again))
