// Rotates pairs of channels of heads by the angle of the token's position: needs the bindings `x`, `pos`, `table` and `y`
// and the parameters of `rope`.
// SECTIONS: 0 one position turns all pairs, 1 neighbouring pairs share an axis, 2 pairs alternate between axes.

const FINE = 256u;

// (cos, sin) of a pair at a position.
fn angle(position: i32, pair: u32) -> vec2<f32> {
    if (position < 0) {
        return vec2<f32>(1.0, 0.0);
    }
    let coarse_row = u32(position) / FINE;
    if (coarse_row >= p.n_coarse) {
        return vec2<f32>(0.0);
    }
    let fine = table[(u32(position) % FINE) * p.pairs + pair];
    let coarse = table[(FINE + coarse_row) * p.pairs + pair];
    return vec2<f32>(
        coarse.x * fine.x - coarse.y * fine.y,
        coarse.y * fine.x + coarse.x * fine.y,
    );
}

// The axis of a pair: t, h, w, e as 0 to 3.
fn axis_of(pair: u32) -> u32 {
    let at = pair % (p.section_t + p.section_h + p.section_w + p.section_e);
    if (SECTIONS == 2u) {
        let turn = at % 3u;
        let section = select(select(p.section_t, p.section_h, turn == 1u), p.section_w, turn == 2u);
        return select(3u, turn, at < 3u * section);
    }
    if (at < p.section_t) {
        return 0u;
    }
    if (at < p.section_t + p.section_h) {
        return 1u;
    }
    return select(3u, 2u, at < p.section_t + p.section_h + p.section_w);
}

// The position that turns a pair.
fn position_of(token: u32, pair: u32) -> i32 {
    let position = pos[p.pos_off + token];
    if (SECTIONS == 0u) {
        return position;
    }
    let axis = axis_of(pair);
    if (p.pos_axis > 0u) {
        return pos[p.pos_off + axis * p.pos_axis + token];
    }
    // One position for all axes but the last, which text does not use.
    return select(position, min(position, 0), axis == 3u);
}

// Rotates what thread `index` owns: one pair, or one channel that is only copied, in heads_per_thread heads of a token.
fn rotate(index: u32) {
    if (index >= p.n_items) {
        return;
    }
    let item = index % p.items;
    let part = index / p.items;
    let parts = (p.n_heads + p.heads_per_thread - 1u) / p.heads_per_thread;
    let token = part / parts;
    let first_head = (part % parts) * p.heads_per_thread;
    let end_head = min(first_head + p.heads_per_thread, p.n_heads);

    let rotates = item < p.pairs;
    var rotation = vec2<f32>(1.0, 0.0);
    var a = p.pairs + item;
    var b = a;
    if (rotates) {
        rotation = angle(position_of(token, item), item);
        a = item * p.first;
        b = a + p.second;
    }
    for (var head = first_head; head < end_head; head += 1u) {
        let from_row = p.x_off + token * p.x_s0 + head * p.x_s1;
        let to_row = (token * p.n_heads + head) * p.head_dim;
        let x0 = x[from_row + a];
        if (rotates) {
            let x1 = x[from_row + b];
            y[to_row + a] = x0 * rotation.x - x1 * rotation.y;
            y[to_row + b] = x0 * rotation.y + x1 * rotation.x;
        } else {
            y[to_row + a] = x0;
        }
    }
}
