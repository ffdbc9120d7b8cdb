// query_shared: queries of a token, four heads by channel, as every thread finds them in shared memory.
const SELF_STAGED = true;

fn SELF_own(token: u32, head: u32, c: u32, thread: u32) -> h_Rows {
    return h_all(0.0);
}

// Queries of channel `c`, of the eight that `own` is for.
fn SELF_at(own: h_Rows, c: u32) -> h_Rows {
    return queries[c];
}

// Whether a thread goes on that wants to.
fn SELF_together(wants: bool) -> bool {
    return wants;
}
