// Held-out edges against one tile of scores; abi.py has the same structure. Arrays belong to the caller.
#pragma once

struct pbg_rank_tile {
  const float* scores;          // (questions, columns)
  int64_t columns;              // candidates
  int64_t edges;                // N held-out edges that ask these questions
  const int64_t* question;      // (N): whose scores each edge looks at
  const float* ties;            // (N): from this score on a candidate is no worse than the true entity,
  const float* wins;            // (N): but up to this one only by rounding: it is close
  const int64_t* own;           // (N): column of the true entity, which is left out, or -1
  const int64_t* answer_start;  // (questions + 1): where the known answers of each question begin,
  const int64_t* answers;       // their columns
  int64_t* counts;              // out: (N, 2): candidates that are no worse, and known answers among them
  int64_t* close;               // out: (capacity, 2): edge and column of those that are close
  int64_t capacity;
};

// Held-out edges against candidates whose scores are inner products: no tile of scores is needed for them.
struct pbg_rank_products {
  const float* queries;         // (questions, dimension)
  const float* candidates;      // (columns, dimension)
  int64_t questions;
  int64_t columns;
  int64_t dimension;
  int64_t edges;                // N, and the others as above, but `question` ascends
  const int64_t* question;
  const float* ties;
  const float* wins;
  const int64_t* own;
  const int64_t* answer_start;
  const int64_t* answers;
  int64_t* counts;
  int64_t* close;
  int64_t capacity;
};
