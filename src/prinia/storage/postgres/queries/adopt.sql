select {schema}.adopt()
