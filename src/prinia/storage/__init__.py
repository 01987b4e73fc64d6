"""Where jobs live: the protocol, and its implementations."""
