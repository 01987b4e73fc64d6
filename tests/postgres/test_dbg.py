from .test_claims import test_a_rolled_back_claim_is_found as base, mark
from . import test_claims, kit
import pytest
@pytest.mark.parametrize("n", range(14))
async def test_dbg(lab, monkeypatch, n):
    monkeypatch.setattr(kit, "PATIENCE", 3)
    ws=[]
    w = lab.worker
    async def worker(*a):
        ws.append(await w(*a)); return ws[-1]
    monkeypatch.setattr(lab, "worker", worker)
    u = test_claims.until
    async def until(*a, **k):
        return await u(*a, **k, patience=4)
    monkeypatch.setattr(test_claims, "until", until)
    try:
        await base(lab, monkeypatch, True)
    except AssertionError:
        m = mark(ws[0])
        print("LINE", m.lanes, m._noted_xmax, m._noted, m._note_at, __import__("time").monotonic(), await lab.rows("select pg_current_snapshot()::text, (select array_agg(row(id, scheduled_at, claimed_at, owner)) from (select * from prinia.jobs order by scheduled_at limit 3) s), (select array_agg(row(pid, datname, backend_xid, state,query)) from pg_stat_activity where backend_xid is not null)"))
        raise
