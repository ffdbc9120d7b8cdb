// heads_12: rows, query heads that share what they read, of a block.
constexpr unsigned SELF_ROWS = 12u;
