// query_shuffle: the eight threads of a block are one warp; thread `k` loads the queries of channel `k` of eight, the
// others get them by a shuffle. A CPU loads lane by lane, but shuffles a vector in one instruction. For one token.
const SELF_STAGED = false;

fn SELF_own(token: u32, head: u32, c: u32, thread: u32) -> h_Rows {
    if (c + thread >= p.dim) {
        return h_all(0.0);
    }
    return h_Rows(four_heads(token, head, c + thread));
}

// Queries of channel `c`, of the eight that `own` is for.
fn SELF_at(own: h_Rows, c: u32) -> h_Rows {
    return h_Rows(subgroupShuffle(own.a, c % 8u));
}

// Whether a thread goes on that wants to: all do if one does, since they need each other.
fn SELF_together(wants: bool) -> bool {
    return subgroupAny(wants);
}
