// What training steps are given, and the memory it keeps from one to the next. `pbg_tasks/native/abi.py` has the same
// structures for ctypes; all fields are 8 bytes wide, so that there is no padding to agree on.
#pragma once

enum Operator : int64_t { NONE, TRANSLATION, DIAGONAL, COMPLEX_DIAGONAL, LINEAR, AFFINE };
enum Comparator : int64_t { DOT, COS, L2, SQUARED_L2 };
enum Loss : int64_t { SOFTMAX, RANKING, LOGISTIC };
enum Regularizer : int64_t { NO_PENALTY, CUBE, SQUARE };

// The embeddings of one side's entity type: (count, dimension), with the sum of squared gradients of each row. They are
// float32, or the same without its last 16 bits, which is bfloat16.
struct pbg_table {
  float* rows;       // or null
  uint16_t* halves;  // or null
  float* sums;
  int64_t count;
  int64_t trainable;
  float* global;       // (dimension), added to every row; null: none
  float* global_sums;  // its squared gradients, summed
};

// A parameter of an operator: (relations, size) with dynamic relations, else (1, size).
struct pbg_parameter {
  float* values;
  float* sums;
  int64_t relations;
  int64_t size;
};

// Arrays of two hold the left-hand side, then the right-hand side.
struct pbg_step {
  Operator relation_operator;
  Comparator comparator;
  Loss loss_fn;
  Regularizer regularizer;
  int64_t dynamic;  // operators on both sides, for queries; else on the right-hand side, for all
  int64_t bias;     // the first number of an embedding is added to its scores
  int64_t half;     // products of numbers rounded to bfloat16, where the instruction set has them
  int64_t sampled;  // slopes of negatives are sampled
  uint64_t key;     // the number that this step's random bits are a hash of
  double sampled_variance;  // largest, of all of a row's, as a share of the sum of their squares
  double margin, max_norm, coefficient, lr, relation_lr;
  double weights_of_sides[2];  // of the loss with negatives on that side
  double times;  // how often a regularizer counts the parameters, if they are not dynamic

  int64_t dimension;
  int64_t edges;
  int64_t chunk;  // edges in a chunk; the last may have fewer
  int64_t own;    // whether the other edges of a chunk give negatives

  const int64_t* ends[2];         // (edges)
  const int64_t* relations;       // (edges), rows of the parameters; null: row 0
  const float* weights;           // (edges), or null
  const int64_t* drawn[2];        // (chunks * drawn_per_chunk), of `all` (drawn_per_chunk); or null
  int64_t drawn_per_chunk[2];
  int64_t corrupted[2];           // whether a side has negatives
  int64_t all[2];                 // whether the drawn are all entities for every chunk, each edge's own masked
  const uint8_t* selves;          // (edges), whether an edge's known end is a negative, the last one; null: no such column
  pbg_table* tables[2];           // twice the same where both are the same partition
  pbg_parameter parameters[2][2];

  int64_t steps;            // how many there are from this one on; what has a number for each edge or drawn has those of one behind another's
  const double* rates;      // (steps), factors of both learning rates
  const uint64_t* keys;     // (steps), `key` of each; null: none
  double* figures;          // (steps, 4), results: loss, penalty, violators of both sides

  double loss, penalty;  // results of this step
  int64_t violators[2];
  float* positive[2];  // (edges), scores to be shown; or null
  float* negative[2];  // (edges, chunk if `own`, then drawn_per_chunk, then 1 if `selves`)
};

constexpr float MASKED = -1e9f;
constexpr float EPSILON = 1e-10f;   // of Adagrad
constexpr float TINY = 1e-30f;      // squared distances are at least this, as in PBG

// Memory of one kind that grows and is kept; aligned to cache lines, in huge pages where it is large.
template <class Item>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(items_); }

  // Room for `count` items. What was in it is lost when it grows; new memory is zero.
  Item* take(int64_t count) {
    if (count > capacity_) {
      std::free(items_);
      items_ = nullptr;
      capacity_ = 0;
      constexpr size_t kHuge = size_t{2} << 20, kLine = 64;
      size_t bytes = static_cast<size_t>(count) * sizeof(Item);
      size_t alignment = bytes >= kHuge ? kHuge : kLine;
      bytes = (bytes + alignment - 1) / alignment * alignment;
      items_ = static_cast<Item*>(std::aligned_alloc(alignment, bytes));
      if (!items_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
      if (alignment == kHuge) madvise(items_, bytes, MADV_HUGEPAGE);
#endif
      std::memset(items_, 0, bytes);
      capacity_ = static_cast<int64_t>(bytes / sizeof(Item));
    }
    return items_;
  }

  Item* zeroed(int64_t count) {
    if (count > 0) std::memset(take(count), 0, static_cast<size_t>(count) * sizeof(Item));
    return items_;
  }

  Item* get() const { return items_; }

 private:
  Item* items_ = nullptr;
  int64_t capacity_ = 0;
};

template <class Number>
inline void prefetch(const Number* row, int64_t size) {
  for (int64_t d = 0; d < size; d += 64 / sizeof(Number)) __builtin_prefetch(row + d, 1, 2);
}

// Places from 1 on of the distinct rows that a step uses: a table with one slot for each row of the array where that is
// small, else a hash table, at most half of whose slots are taken.
class Places {
 public:
  // Forgets all places. The next step uses at most `uses` of `rows` rows.
  void begin(int64_t rows, int64_t uses) {
    bits_ = 1;
    while ((int64_t{1} << bits_) < 2 * uses) ++bits_;
    hashed_ = (int64_t{1} << bits_) < rows;
    slots_.zeroed(hashed_ ? int64_t{1} << bits_ : rows);
  }

  // The place of a row, 0 if it has none yet; `is_of` returns whether a place is the row's.
  template <class IsOf>
  int32_t& find(int64_t row, IsOf is_of) {
    if (!hashed_) return slots_.get()[row];
    const uint64_t last = (uint64_t{1} << bits_) - 1;
    uint64_t at = static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u >> (64 - bits_);
    for (;; at = (at + 1) & last) {
      int32_t& place = slots_.get()[at];
      if (!place || is_of(place)) return place;
    }
  }

 private:
  Buffer<int32_t> slots_;
  int bits_ = 1;
  bool hashed_ = false;
};

// Gradients of the distinct rows of one array that a step uses. Every use is announced before the first begins, in the
// order in which they will be over. A row's gradient has memory from when it is first asked for until the row's last use is
// over; what is in use at a time is small then, and stays in caches. Between steps all of the memory is zero. All of it
// follows the uses of a step, not the rows of the array: each worker has its own.
class Gradients {
 public:
  // Begins a step that announces at most `uses` uses of an array of `rows` rows.
  void begin(int64_t rows, int64_t size, int64_t uses) {
    places_.begin(rows, uses);
    size_ = size;
    if (size > slot_) {
      slot_ = (size + kLine - 1) / kLine * kLine;
      free_.clear();
      slabs_.clear();
      held_ = 0;
    }
    touched_.clear();
    uses_.clear();
    over_ = 0;
  }

  // Announces uses of rows.
  void announce(const int64_t* rows, int64_t count) {
    for (int64_t i = 0; i < count; ++i) announce(rows[i]);
  }

  void announce(int64_t row) {
    int32_t& place = place_of(row);
    if (!place) {
      touched_.push_back({row, 0, nullptr});
      place = static_cast<int32_t>(touched_.size());
    }
    uses_.push_back(place - 1);
    touched_[uses_.back()].last = static_cast<int64_t>(uses_.size());
  }

  // How many uses are over: the number of the one that will be over next.
  int64_t over() const { return over_; }

  float* of_use(int64_t number) { return gradient(touched_[uses_[number]]); }
  bool is_last_use(int64_t number) const { return touched_[uses_[number]].last == number + 1; }
  float* at(int64_t row) { return gradient(touched_[place_of(row) - 1]); }

  static constexpr int64_t GROUP = 16;

  // Ends the next uses: passes on the rows that have no other use with their gradients, GROUP at a time; `use`
  // leaves zeros. Rows whose gradient was never asked for are not shown.
  template <class Use>
  void finish(int64_t count, Use use) {
    int64_t rows[GROUP], found = 0;
    float* gradients[GROUP];
    for (const int64_t end = over_ + count; over_ < end || found;) {
      if (over_ < end) {
        const Touched& touched = touched_[uses_[over_]];
        if (touched.last != ++over_ || !touched.gradient) continue;
        rows[found] = touched.row;
        gradients[found++] = touched.gradient;
        if (found < GROUP) continue;
      }
      use(rows, gradients, found);
      free_.insert(free_.end(), gradients, gradients + found);
      found = 0;
    }
  }

  template <class Use>
  void finish(Use use) {
    finish(static_cast<int64_t>(uses_.size()) - over_, use);
  }

 private:
  static constexpr int64_t kLine = 16;  // floats of a cache line

  struct Touched {
    int64_t row, last;  // how many uses are over when its last is
    float* gradient;    // null: not asked for yet
  };

  int32_t& place_of(int64_t row) {
    return places_.find(row, [&](int32_t place) { return touched_[place - 1].row == row; });
  }

  float* gradient(Touched& touched) {
    if (!touched.gradient) touched.gradient = spare();
    return touched.gradient;
  }

  // What became free last is most likely in the caches.
  float* spare() {
    if (free_.empty()) grow();
    float* found = free_.back();
    free_.pop_back();
    return found;
  }

  // Little at first, then a huge page at a time.
  void grow() {
    constexpr int64_t kLeast = (int64_t{256} << 10) / sizeof(float), kMost = (int64_t{2} << 20) / sizeof(float);
    const int64_t floats = std::max(slot_, std::min(std::max(kLeast, held_), kMost));
    slabs_.push_back(std::make_unique<Buffer<float>>());
    float* slab = slabs_.back()->take(floats);
    held_ += floats;
    for (int64_t i = floats / slot_; i-- > 0;) free_.push_back(slab + i * slot_);
  }

  Places places_;  // of rows among the touched ones
  std::vector<Touched> touched_;
  std::vector<int32_t> uses_;  // the touched row of each
  int64_t over_ = 0;
  std::vector<std::unique_ptr<Buffer<float>>> slabs_;
  std::vector<float*> free_;
  int64_t size_ = 0, slot_ = 0;  // floats of a row, and from one gradient to the next
  int64_t held_ = 0;             // floats of all slabs
};

// Embeddings on their way to the comparator: where they are, where their gradients go, and what was made for them.
struct RowMemory {
  Buffer<const float*> raw, ready;
  Buffer<float*> gradient;
  Buffer<float> copied, applied, collected, norms;
};

struct pbg_workspace {
  Gradients rows[2];
  Gradients parameters[2][2];
  RowMemory ends[4], drawn;
  Buffer<float> scores, row, by_candidate, discarded, widened, matrix[2];
  Buffer<float> packed_factors[2], packed_queries, packed_strip, turned;
  Buffer<double> global;
  Buffer<uint16_t> half_queries, half_rows, half_factors, half_in_turns, half_turned, half_block;
  Buffer<const float*> candidates, pointers;
  std::vector<const float*> needed;
  Buffer<float*> candidate_gradients, outputs;
  Buffer<int64_t> order;
  Buffer<int32_t> entry_begins, entry_queries, packed_chosen[2];
  Buffer<float> entry_factors;
};
