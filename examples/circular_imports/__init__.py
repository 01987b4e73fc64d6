"""A shop of three modules: `mail` and `orders` enqueue each other's tasks, `app` includes both.

Neither of the two imports the app, so there is no circle that an import could get stuck in. Run it as
``python -m circular_imports``, in the folder above.
"""
