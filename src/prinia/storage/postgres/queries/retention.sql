select {schema}.kept(q.keep_completed), {schema}.kept(q.keep_failed), {schema}.kept(q.keep_cancelled)
  from {schema}.queues q
 where q.name = %(queue)s
