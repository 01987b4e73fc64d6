select jobs, name, since from {schema}.meet() where jobs is not null
