"""What an app can be asked of one job: why it does not run."""

from __future__ import annotations

from abc import abstractmethod

from prinia.colour import refuse_in_loop
from prinia.explanation import Explanation
from prinia.handle import check_id
from prinia.reasoning import explain
from prinia.situation import AHEAD_LIMIT
from prinia.storage.protocol import Storage


class Explaining:
    """What `prinia.Prinia` has of it."""

    __slots__ = ()

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Where the jobs live."""

    def explain(self, id: int, /) -> Explanation:
        """Why the job of this id does not run, or how it does, from what the database knows.

        A job that is not there is explained too. Reasons come in order: what somebody has to mend first. Raises
        `JobNotFound` for what can be no id, `ColourError` inside a running event loop.

        Example::

            for reason in app.explain(42).reasons:
                print(f"{reason.code}: {reason.text} {reason.advice}")
        """
        refuse_in_loop("app.explain()", "app.aexplain(...)")
        return explain(id, self.storage.situation(check_id(id), limit=AHEAD_LIMIT))

    async def aexplain(self, id: int, /) -> Explanation:
        """`explain`, awaited."""
        return explain(id, await self.storage.asituation(check_id(id), limit=AHEAD_LIMIT))
