// heads_4: rows, query heads that share what they read, of a block.
constexpr unsigned SELF_ROWS = 4u;
