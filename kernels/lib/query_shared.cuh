// query_shared: queries as every thread finds them in shared memory. The kernel says how.
