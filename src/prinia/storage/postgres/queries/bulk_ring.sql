select {schema}.ring(%(queues)s::text[])
