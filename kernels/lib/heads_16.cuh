// heads_16: rows, query heads that share what they read, of a block.
constexpr unsigned SELF_ROWS = 16u;
