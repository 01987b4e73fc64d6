"""The promises of `prinia.storage.protocol`, as tests that any storage can be put to.

Each test's docstring is the promise in words. Make a class, say how to get a storage, and let pytest collect it (or
unittest: then ``unittest.TestCase`` is a second base)::

    class TestMyStorage(StorageConformance):
        def make_storage(self) -> Storage:
            return MyStorage(fresh_database())

Each test gets a storage of its own, empty and migrated. Nothing is mocked, no timing is asserted: where time has to
pass, a test asks again until it has.
"""

from __future__ import annotations

from prinia.testing.conformance.acking import AckPromises
from prinia.testing.conformance.announcing import AnnouncementPromises
from prinia.testing.conformance.bells import BellPromises
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, job, promise
from prinia.testing.conformance.cancelling import CancelPromises
from prinia.testing.conformance.claiming import ClaimPromises
from prinia.testing.conformance.controlling import CommandPromises, PausePromises
from prinia.testing.conformance.expiry import ExpiryPromises
from prinia.testing.conformance.explaining import ExplainPromises
from prinia.testing.conformance.listing import ListPromises
from prinia.testing.conformance.operating import OperatePromises, RedrivePromises
from prinia.testing.conformance.order import OrderPromises
from prinia.testing.conformance.pushing import PushPromises
from prinia.testing.conformance.replacing import ReplacePromises
from prinia.testing.conformance.rescuing import RescuePromises
from prinia.testing.conformance.resending import ResendPromises
from prinia.testing.conformance.retaining import RetentionPromises
from prinia.testing.conformance.retrying import RetryPromises
from prinia.testing.conformance.storing import StoringPromises
from prinia.testing.conformance.strays import StrayPromises
from prinia.testing.conformance.unique import UniquePromises, WindowPromises
from prinia.testing.conformance.watching import WatchPromises
from prinia.testing.conformance.within import WithinPromises

__all__ = ["Bench", "ConformanceBase", "StandIn", "StorageConformance", "job", "promise"]


class StorageConformance(
    PushPromises,
    UniquePromises,
    WindowPromises,
    ReplacePromises,
    StoringPromises,
    ClaimPromises,
    OrderPromises,
    AckPromises,
    ResendPromises,
    RetryPromises,
    CancelPromises,
    AnnouncementPromises,
    OperatePromises,
    RedrivePromises,
    PausePromises,
    CommandPromises,
    ExpiryPromises,
    WatchPromises,
    RescuePromises,
    StrayPromises,
    RetentionPromises,
    BellPromises,
    WithinPromises,
    ListPromises,
    ExplainPromises,
):
    """All promises. Override `make_storage`, and `transaction` where the storage pushes in the caller's."""
