"""The app: it knows the modules with tasks, they do not know it."""

from __future__ import annotations

from circular_imports import mail, orders
from prinia import Prinia

app = Prinia()
app.include(mail.tasks)
app.include(orders.tasks)
