select {schema}.make_leaves()
