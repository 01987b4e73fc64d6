"""Waiting for jobs to end: looking, hearing, and when to do which.

Whoever waits looks, ever less often. What has been waited for a while is expected as well: its end is then announced,
and it is looked at the moment that is heard. `Agenda` says when to look at what; `Lookout` looks for everybody in one
event loop, `Watch` for one blocking call; `Ears` hear for all blocking calls of a process. `Waiter` is what handles
know of it, `Waiting` what `prinia.Prinia.wait` answers with.
"""
