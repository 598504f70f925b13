"""What a blocked actor's thread tells the cluster, with a stand-in for the cluster's store."""

import pytest

from turngym.executors.fleet import block_reports
from turngym.executors.pools.watchdog import Blocking


def test_a_store_that_cannot_be_reached_for_a_while_is_told_later(monkeypatch, caplog):
    blocking = Blocking("Env.step", 2.0, "task/0")
    looks = iter([None, blocking, blocking, None, None, None])
    calls: list[str] = []
    fails = {0, 2}  # the first and the third call

    def store(what: str):
        def call(*arguments, namespace):
            calls.append(what)
            if len(calls) - 1 in fails:
                raise ConnectionError("no store")

        return call

    monkeypatch.setattr(block_reports, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(block_reports, "blocking_now", lambda: next(looks))
    monkeypatch.setattr(block_reports, "_internal_kv_put", store("put"))
    monkeypatch.setattr(block_reports, "_internal_kv_del", store("delete"))
    with pytest.raises(StopIteration):  # the last look; the thread itself has no end
        block_reports._report(b"key")
    assert calls == ["put", "put", "delete", "delete"]
    assert len([record for record in caplog.records if "no store" in record.getMessage()]) == 2
