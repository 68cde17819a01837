// The three products of a chunk by the kernels of a step alone, of the instruction set SET.

#include "native.cpp"

using namespace SET;

// Of each edge's query with each candidate. `factors`: a row of `width` for each edge.
struct chunk_products {
  int64_t edges, candidates, numbers, width;
  const float* const* queries;
  const float* const* rows;
  float* const* of_queries;  // gradients
  float* const* of_rows;
  float* scores;
  const float* factors;
};

constexpr int64_t kBlock = 50;  // candidates that go by together, as in a step

template <class Any>
void add_all(const Any& products, int64_t numbers) {
  Fetcher ahead(numbers);
  over_strips<Any>(numbers, [&](Strip strip) { add_products(products, strip, ahead); });
}

PUBLIC void multiply_scores(const chunk_products* chunk, pbg_workspace* workspace) {
  const chunk_products& c = *chunk;
  if (by_columns(c.edges, c.numbers))
    return dots_by_columns(c.queries, c.edges, c.rows, c.candidates, c.numbers, c.scores, c.width, workspace->turned);
  dots(c.queries, c.edges, c.rows, c.candidates, c.numbers, c.scores, c.width);
}

PUBLIC void multiply_to_candidates(const chunk_products* chunk, pbg_workspace* workspace) {
  const chunk_products& c = *chunk;
  const float* queries = packed_terms(c.queries, c.edges, c.numbers, workspace->packed_queries);
  for (int64_t k = 0; k < c.candidates; k += kBlock) {
    const int64_t count = std::min(kBlock, c.candidates - k);
    const Products block{c.of_rows + k, count, c.factors + k, 1, c.width, c.queries, c.edges};
    add_all(packed(block, queries, *workspace, 0), c.numbers);
  }
}

PUBLIC void multiply_to_queries(const chunk_products* chunk, pbg_workspace* workspace) {
  const chunk_products& c = *chunk;
  for (int64_t k = 0; k < c.candidates; k += kBlock) {
    const int64_t count = std::min(kBlock, c.candidates - k);
    const Products block{c.of_queries, c.edges, c.factors + k, c.width, 1, c.rows + k, count};
    add_all(packed(block, nullptr, *workspace, 1), c.numbers);
  }
}
