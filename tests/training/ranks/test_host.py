from __future__ import annotations

import socket

import pytest

from pbg_tasks.errors import ConfigError, RankLostError
from pbg_tasks.training.ranks.transport.host import VARIABLE, common_host, is_loopback, own_host


@pytest.fixture(autouse=True)
def _untold(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")  # so that the interface is as before afterwards, even after a test that changes it


def outward():
    """An address of this machine that is not of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return probe.getsockname()[0]


def test_host_is_on_the_way_to_rank_zero():
    assert own_host("127.0.0.1") == own_host("localhost") == "127.0.0.1"
    assert own_host(outward()) == outward()


def test_host_of_one_machine_is_loopback():
    assert own_host(None) == "127.0.0.1"


def test_named_interface_decides_the_host(monkeypatch):
    monkeypatch.setenv(VARIABLE, "lo,eth0")
    assert own_host("192.0.2.1") == "127.0.0.1"
    monkeypatch.setenv(VARIABLE, "nosuch0")
    with pytest.raises(ConfigError, match=rf"{VARIABLE}: there is no interface 'nosuch0' .*; there are: lo"):
        own_host(None)


def test_unknown_name_is_refused():
    with pytest.raises(RankLostError, match=r"no way leads to rank 0 at nowhere\.invalid"):
        own_host("nowhere.invalid")


def test_loopback_address_is_replaced_for_other_machines():
    assert common_host("127.0.1.1", ["127.0.0.1"]) == "127.0.1.1"
    assert common_host("127.0.1.1", ["127.0.0.1", outward()]) == outward()
    assert common_host("192.0.2.9", ["127.0.0.1"]) == "192.0.2.9"


def test_loopback_addresses_are_recognized():
    assert all(map(is_loopback, ("127.0.0.1", "127.0.1.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("192.0.2.9", "rank-0.example")))
