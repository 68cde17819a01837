from __future__ import annotations

import hmac
import json
import multiprocessing
import socket
import time

import pytest
from torch.distributed import HashStore

from pbg_tasks.errors import RankLostError
from pbg_tasks.training.ranks.group import gang, rendezvous
from pbg_tasks.training.ranks.group.rank_env import RankEnv
from tests.training.ranks import joiner

OURS, ANOTHERS = "a token of a run", "the token of another"
LOST, CONFIG = "RankLostError", "ConfigError"


@pytest.fixture(scope="module")
def forks():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([joiner.__name__])
    return context


@pytest.fixture
def gather(forks, tmp_path):
    """Start processes with given settings; return their results.

    The result is None of a process that was killed.
    """

    def run(*unusual, **common):
        usual = {
            "world": 2,
            "servers": 0,
            "spec": "spec",
            "token": None,
            "timeout": 10.0,
            "then": "",
            "environment": {},
        }
        usual |= {"method": f"tcp://127.0.0.1:{free_port()}", **common}
        outs, processes = [tmp_path / f"{number}.json" for number in range(len(unusual))], []
        for number, (out, own) in enumerate(zip(outs, unusual, strict=True)):
            out.unlink(missing_ok=True)
            given = {"rank": number, **usual, **own}
            processes.append(forks.Process(target=joiner.run, args=(str(out),), kwargs=given))
            processes[-1].start()
        for process, own in reversed(list(zip(processes, unusual, strict=True))):  # the stopped process comes last
            if own.get("then") == "freeze":
                process.kill()
            process.join(60)
            assert process.exitcode in {0, 9, -9}
        return [json.loads(out.read_text()) if out.exists() else None for out in outs]

    return run


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def errors(results, kind):
    assert [result["error"][0] for result in results] == [kind] * len(results), results
    return [result["error"][1] for result in results]


def test_three_processes_meet_share_and_wait(gather):
    environment = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    results = gather({}, {}, {}, world=2, servers=1, method="env://", environment=environment)
    assert len({result["token"] for result in results}) == 1
    assert len(results[0]["token"]) == 64
    for result in results:
        assert "error" not in result
        assert result["host"] == "127.0.0.1"
        assert result["shared"] == [{"rank": rank, "text": "x" * rank} for rank in range(3)]


@pytest.mark.parametrize(("host", "family"), [("::1", socket.AF_INET6), ("127.0.0.1", socket.AF_INET)])
def test_meeting_port_is_of_its_hosts_family(monkeypatch, host, family):
    """At ::1 the error was that another process has the port."""
    monkeypatch.setattr(socket, "create_server", lambda address, family: (address, family))
    assert rendezvous._listen((host, 29500), time.monotonic()) == ((host, 29500), family)


def test_meeting_file_of_killed_gang_needs_new_token(gather, tmp_path):
    method = f"file://{tmp_path}/meet"
    assert gather({}, {}, method=method, token=OURS, then="vanish") == [None, None]
    results = gather({}, {}, method=method, token=ANOTHERS)
    assert [result["token"] for result in results] == [ANOTHERS] * 2
    texts = errors(gather({}, {}, method=method, token=OURS), CONFIG)
    assert all("two processes call themselves rank" in text and "then remove it" in text for text in texts)


def test_missing_process_is_named(gather):
    results = gather({}, {"rank": 2}, world=4, timeout=1.5)
    texts = errors(results, LOST)
    assert any("2 of 4 processes came to 127.0.0.1:" in text and "no rank 1, 3" in text for text in texts)
    assert max(result["seconds"] for result in results) < 10


def test_long_wait_for_rank_0_is_announced(monkeypatch, capsys):
    """A rank with a wrong address was silent for ten minutes."""
    monkeypatch.setattr(rendezvous, "_QUIET_SECONDS", 0.1)
    port = free_port()
    with pytest.raises(RankLostError, match="does not answer"):
        rendezvous._await_master(("127.0.0.1", port), time.monotonic() + 1, lambda: None)
    assert capsys.readouterr().err.count(f"waiting for rank 0 to answer at 127.0.0.1:{port}, for up to 0:0") == 1


def test_long_wait_for_other_ranks_is_announced(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "_QUIET_SECONDS", 0.1)
    env = RankEnv(rank=0, world=3, servers=0, init_method="tcp://127.0.0.1:1")
    own = rendezvous.Arrival(**ARRIVAL)
    with pytest.raises(RankLostError, match="no rank 1, 2"):
        rendezvous._exchange_arrivals(HashStore(), env, own, time.monotonic() + 1, 1.0, lambda: None)
    assert capsys.readouterr().err.count("waiting for rank 1, 2 to come to 127.0.0.1:1") == 1


@pytest.mark.parametrize(
    ("unusual", "text"),
    [
        ({"spec": "another"}, "have different runs, configs, seeds or edges"),
        ({"world": 3}, "set the same WORLD_SIZE"),
        ({"token": OURS}, "have different run tokens"),
        ({"world": 1, "servers": 1}, "set the same WORLD_SIZE"),
    ],
)
def test_contradictory_processes_all_fail_at_once(gather, unusual, text):
    results = gather({}, unusual, timeout=30)
    assert all(text in said for said in errors(results, CONFIG))
    assert max(result["seconds"] for result in results) < 20


ARRIVAL = {"version": rendezvous._VERSION, "spec": "s", "world": 2, "servers": 0, "token": "", "encrypted": False}
ARRIVAL["host"] = "127.0.0.1"


def test_arrival_of_this_version_is_read_whole():
    assert rendezvous._read_arrival(json.dumps(ARRIVAL).encode()) == rendezvous.Arrival(**ARRIVAL)


def test_arrival_of_another_version_is_recognized():
    other = rendezvous._read_arrival(b'{"version": "9.9", "more": 1}')
    assert "9.9" in rendezvous.Arrival(**ARRIVAL).difference(other)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"GET / HTTP/1.1",
        json.dumps(ARRIVAL).encode("utf-16"),
        json.dumps({**ARRIVAL, "host": 5}).encode(),
        json.dumps({**ARRIVAL, "world": True}).encode(),
        json.dumps({**ARRIVAL, "world": float("nan")}).encode(),
        json.dumps({**ARRIVAL, "more": 1}).encode(),
        json.dumps({**ARRIVAL, "version": None}).encode(),
    ],
)
def test_message_that_no_rank_writes_is_refused(said):
    assert rendezvous._read_arrival(said) is None


def test_two_processes_of_one_rank_are_refused(gather):
    texts = errors(gather({}, {}, {"rank": 1}, world=3, timeout=30), CONFIG)
    assert all("two processes call themselves rank 1" in text for text in texts)


def test_rank_that_returns_too_early_may_try_again():
    """Its gang needs up to a minute to end."""
    store, own = HashStore(), rendezvous.Arrival(**ARRIVAL)
    store.set("arrivals/0", json.dumps(ARRIVAL))
    arguments = store, RankEnv(1, 2, 0, "tcp://127.0.0.1:1"), own, time.monotonic() + 1, 1.0, lambda: None
    assert rendezvous._exchange_arrivals(*arguments) == [own]
    with pytest.raises(RankLostError, match="start again once that gang has ended"):
        rendezvous._exchange_arrivals(*arguments)
    assert not store.check(["refusal"])


def test_second_rank_zero_is_refused(gather):
    results = gather({}, {"rank": 0}, timeout=1.5)
    assert sorted(result["error"][0] for result in results) == [CONFIG, LOST]
    assert any("perhaps a second rank 0" in result["error"][1] for result in results)


def test_port_without_listener_ends_the_start(gather):
    (text,) = errors(gather({"rank": 1}, timeout=0.5), LOST)
    assert "rank 0 does not answer at 127.0.0.1:" in text


def test_silent_listener_ends_the_start(gather):
    """torch would wait without end for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        method = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        (result,) = gather({"rank": 1}, timeout=0.5, method=method)
    assert "does not answer for 4 s" in errors([result], LOST)[0]
    assert result["seconds"] < 20


def test_stopped_rank_zero_ends_start_of_others(gather):
    """Its kernel still accepts connections.

    The others wait for the latecomer, but not for the stopped one.
    """
    stopped, first, second = gather({"then": "freeze"}, {}, {}, world=4, timeout=300)
    assert stopped is None
    texts = errors([first, second], LOST)
    assert all("does not answer for 4 s" in text for text in texts)
    assert max(first["seconds"], second["seconds"]) < 30


def test_missing_directory_is_refused(gather, tmp_path):
    (text,) = errors(gather({}, method=f"file://{tmp_path}/no/meet"), CONFIG)
    assert text.endswith(f"there is no directory {tmp_path}/no")


def test_process_that_dies_after_joining_is_reported(gather):
    first, second, third = gather({}, {"then": "die"}, {}, world=3)
    assert second is None
    errors([first, third], LOST)
    assert max(first["seconds"], third["seconds"]) < 10


def test_process_late_for_a_barrier_is_reported(gather):
    first, _ = gather({}, {"then": "dawdle"})
    assert "no message of rank 1 for 1 s" in errors([first], LOST)[0]


@pytest.fixture
def rank_zero(monkeypatch):
    """Rank 0 of two, and the store where rank 1 writes."""
    monkeypatch.setattr(gang, "_PARTING_SECONDS", 0.2)
    monkeypatch.setattr(gang, "_SILENCE", 1.0)
    monkeypatch.setattr(gang, "_GRACE", 1.0)
    store = HashStore()
    return gang.Gang(gang.RankEnv(0, 2, 0, "tcp://127.0.0.1:1"), store, "127.0.0.1", OURS), store


def leave(store, text, secret=OURS, key="rounds/0/1"):
    """Leave a message as rank 1 does."""
    store.set(key, hmac.digest(secret.encode(), f"rounds/0/1 {text}".encode(), "sha256").hex() + text)


def test_rank_zero_outlasts_rank_lost_within_round(rank_zero):
    here, store = rank_zero
    leave(store, "{}")
    assert here.share({"rank": 0}) == [{"rank": 0}, {}]


def test_damaged_message_of_rank_is_refused(rank_zero):
    here, store = rank_zero
    leave(store, "[1]")
    with pytest.raises(RankLostError, match=r"what the ranks share at .* is damaged: list instead of an object"):
        here.share({"rank": 0})


@pytest.mark.parametrize("secret", ["", ANOTHERS])
def test_message_of_stranger_is_refused(rank_zero, secret):
    here, store = rank_zero
    leave(store, "{}", secret)
    with pytest.raises(RankLostError, match="rounds/0/1 is not of a rank with this token"):
        here.share({"rank": 0})


def test_message_of_earlier_round_is_refused(rank_zero):
    here, store = rank_zero
    leave(store, "{}")
    here.share({})
    leave(store, "{}", key="rounds/1/1")
    with pytest.raises(RankLostError, match="rounds/1/1 is not of a rank with this token"):
        here.share({})
