"""The worker engine on the memory storage: every promise of it, and every fault it must stand."""
