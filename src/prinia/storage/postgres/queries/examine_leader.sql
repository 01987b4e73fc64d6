select instance, term from {schema}.leader
