// heads_8: rows, query heads that share what they read, of a block.
constexpr unsigned SELF_ROWS = 8u;
