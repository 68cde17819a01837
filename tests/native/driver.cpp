// Trains batches of every kind with the native library, ranks and writes lines, for the sanitizers: arrays are exactly as
// large as they have to be, sizes leave tails of every length. Two threads at once, each with its own tables: whatever they
// share is a fault. As HOGWILD they train the same tables: races on those are meant to be, and announced to the thread sanitizer;
// races on anything else are faults.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include "lines.hpp"
#include "rank.hpp"
#include "step.hpp"

extern "C" {
pbg_workspace* pbg_workspace_new();
void pbg_workspace_free(pbg_workspace*);
int64_t pbg_train_steps(const pbg_step*, pbg_workspace*);
int64_t pbg_rank(const pbg_rank_tile*);
int64_t pbg_rank_products(const pbg_rank_products*);
int64_t pbg_write_lines(const pbg_lines*);
int32_t pbg_use_instruction_set(const char*);
#if defined(__SANITIZE_THREAD__)
void AnnotateBenignRaceSized(const char* file, int line, const volatile void* memory, unsigned long bytes, const char* why);
#endif
}

namespace {

constexpr int64_t kRelations = 3, kBlock = 50;  // kBlock: candidates whose gradients are made at once, in chunk.inc

// Arrays of exactly this size, so that one step further is noticed.
template <class Item>
using Array = std::unique_ptr<Item[]>;

// What workers change without locks, of two tables and of two parameters on two sides: as large as any batch needs.
constexpr int64_t kShared = 40'000;
uint16_t hogwild_halves[2][kShared];
float hogwild_rows[2][kShared], hogwild_sums[2][kShared], hogwild_global[2][kShared], hogwild_global_sums[2][kShared];
float hogwild_values[2][2][kShared], hogwild_value_sums[2][2][kShared];

// Names the memory in which races are meant to be, with the reason; there is no pattern of functions, which would cover what
// they do to other memory.
void allow_races() {
#if defined(__SANITIZE_THREAD__)
  auto allow = [](const auto& numbers, const char* why) {
    AnnotateBenignRaceSized(__FILE__, __LINE__, &numbers, sizeof numbers, why);
  };
  allow(hogwild_rows, "HOGWILD: a lost update of an embedding costs less than a lock");
  allow(hogwild_halves, "HOGWILD: as float32, of which a number is read and written whole, too");
  allow(hogwild_sums, "HOGWILD: a lost square makes one learning rate a little larger");
  allow(hogwild_global, "HOGWILD: as embeddings, once a batch");
  allow(hogwild_global_sums, "HOGWILD: as sums of rows");
  allow(hogwild_values, "HOGWILD: as embeddings, for the parameters of operators");
  allow(hogwild_value_sums, "HOGWILD: as sums of rows");
#endif
}

struct World {
  std::mt19937 random;
  const bool hogwild;
  World(unsigned seed, bool shared) : random(seed), hogwild(shared) {}

  Array<float> floats(int64_t count, bool positive = false) {
    std::normal_distribution<float> normal;
    Array<float> made(new float[count]);
    for (int64_t i = 0; i < count; ++i) made[i] = positive ? 0.1f + std::abs(normal(random)) : normal(random);
    return made;
  }

  // Numbers that a step changes: of this thread alone, which keeps them in `own`, or those of all threads.
  float* trained(Array<float>& own, float* shared, int64_t count, bool positive = false) {
    own = floats(hogwild ? 0 : count, positive);
    if (hogwild && count > kShared) std::abort();
    return hogwild ? shared : own.get();
  }

  Array<int64_t> below(int64_t bound, int64_t count) {
    std::uniform_int_distribution<int64_t> uniform(0, bound - 1);
    Array<int64_t> made(new int64_t[count]);
    for (int64_t i = 0; i < count; ++i) made[i] = uniform(random);
    return made;
  }

  int64_t pick(int64_t bound) { return static_cast<int64_t>(random() % bound); }
};

int64_t parameter_size(Operator kind, int number, int64_t dimension) {
  switch (kind) {
    case TRANSLATION:
    case DIAGONAL:
      return number == 0 ? dimension : 0;
    case COMPLEX_DIAGONAL:
      return dimension / 2;
    case LINEAR:
      return number == 0 ? dimension * dimension : 0;
    case AFFINE:
      return number == 0 ? dimension * dimension : dimension;
    default:
      return 0;
  }
}

// `halves`: whether the instruction set multiplies numbers of bfloat16. Now and then a batch has more than one block of own
// candidates and of drawn ones, which have the memory of gradients by turns: entities are so many that few come again.
int train(World& world, pbg_workspace* workspace, int64_t number, bool halves) {
  auto pick = [&](int64_t bound) { return world.pick(bound); };
  pbg_step step{};
  step.relation_operator = static_cast<Operator>(number % 6);
  step.comparator = static_cast<Comparator>(number / 6 % 4);
  step.loss_fn = static_cast<Loss>(number / 24 % 3);
  step.dynamic = number / 72 % 2;
  step.regularizer = static_cast<Regularizer>(pick(3));
  const bool blocks = number % 25 == 0;  // 25: so that the operators, comparators and losses of these change, too
  const int64_t entities = blocks ? 400 : 23, least = blocks ? kBlock + 1 : 1;
  step.dimension = 1 + pick(blocks ? 30 : 90);
  if (step.relation_operator == COMPLEX_DIAGONAL) step.dimension += step.dimension % 2;
  step.half = halves && step.comparator <= COS && pick(2);
  step.sampled = pick(2);
  step.sampled_variance = pick(2) ? 10 : 0.1;  // few slopes are left, which go pair by pair, or many, by tiles
  step.bias = pick(3) == 0;
  step.margin = 0.1;
  step.max_norm = pick(3) == 0 ? 0.7 : 0;
  step.coefficient = 1e-3;
  step.lr = step.relation_lr = 0.1;
  step.times = 1;
  step.weights_of_sides[0] = 1;
  step.weights_of_sides[1] = 0.5;
  step.edges = least + pick(40);
  const bool all = !blocks && pick(5) == 0;  // entities are negatives, the same in each chunk, and none of them its own
  step.chunk = least + pick(step.edges - least + 1);
  step.own = !all && pick(4) != 0;
  const int64_t chunks = (step.edges + step.chunk - 1) / step.chunk, dimension = step.dimension;
  const bool same = pick(2) == 0;
  step.steps = 1 + pick(2);
  const int64_t all_edges = step.steps * step.edges;
  const double rates[2] = {1, 0.5};
  const bool narrow = pick(3) == 0;  // embeddings are bfloat16
  const uint64_t keys[2] = {static_cast<uint64_t>(number), static_cast<uint64_t>(number) + 1};
  double figures[8];
  step.rates = rates;
  step.keys = keys;
  step.figures = figures;

  Array<int64_t> ends[2], drawn[2], relations = world.below(kRelations, all_edges);
  Array<uint16_t> halves_of[2];
  Array<float> rows[2], sums[2], global[2], global_sums[2], values[2][2], value_sums[2][2], positive[2], negative[2];
  Array<float> weights = world.floats(all_edges, true);
  Array<uint8_t> selves(new uint8_t[all_edges]);
  std::generate_n(selves.get(), all_edges, [&] { return static_cast<uint8_t>(pick(2)); });
  if (!all && pick(3) == 0) step.selves = selves.get();
  pbg_table tables[2];
  for (int side = 0; side < 2; ++side) {
    ends[side] = world.below(entities, all_edges);
    step.ends[side] = ends[side].get();
    step.corrupted[side] = pick(5) != 0;
    if (step.corrupted[side] && all) {
      step.drawn_per_chunk[side] = entities;
      drawn[side] = Array<int64_t>(new int64_t[entities]);
      std::iota(drawn[side].get(), drawn[side].get() + entities, 0);
      step.drawn[side] = drawn[side].get();
      step.all[side] = 1;
    } else if (step.corrupted[side] && pick(4) != 0) {
      step.drawn_per_chunk[side] = least + pick(20);
      drawn[side] = world.below(entities, step.steps * chunks * step.drawn_per_chunk[side]);
      step.drawn[side] = drawn[side].get();
    }
    float* row = world.trained(rows[side], hogwild_rows[side], entities * dimension);
    uint16_t* half = world.hogwild ? hogwild_halves[side] : nullptr;
    if (narrow && !half) {
      halves_of[side] = Array<uint16_t>(new uint16_t[entities * dimension]);
      half = halves_of[side].get();
      for (int64_t i = 0; i < entities * dimension; ++i) {
        uint32_t bits;
        std::memcpy(&bits, row + i, sizeof bits);
        half[i] = static_cast<uint16_t>(bits >> 16);
      }
      rows[side].reset();
    }
    float* sum = world.trained(sums[side], hogwild_sums[side], entities, true);
    tables[side] = {narrow ? nullptr : row, narrow ? half : nullptr, sum, entities, pick(5) != 0, nullptr, nullptr};
    if (!step.dynamic && pick(2)) {
      tables[side].global = world.trained(global[side], hogwild_global[side], dimension);
      tables[side].global_sums = world.trained(global_sums[side], hogwild_global_sums[side], dimension, true);
    }
    step.tables[side] = same ? &tables[0] : &tables[side];
    if (pick(2)) {
      const int64_t own = step.own && step.corrupted[side] ? step.chunk : 0;
      const int64_t alone = step.selves && step.corrupted[side] ? 1 : 0;
      positive[side] = world.floats(step.edges);
      negative[side] = world.floats(step.edges * (own + step.drawn_per_chunk[side] + alone));
      step.positive[side] = positive[side].get();
      step.negative[side] = negative[side].get();
    }
    if (side == 0 && !step.dynamic) continue;
    for (int which = 0; which < 2; ++which) {
      const int64_t size = parameter_size(step.relation_operator, which, dimension);
      if (!size) continue;
      const int64_t count = step.dynamic ? kRelations : 1;
      float* value = world.trained(values[side][which], hogwild_values[side][which], count * size);
      float* sum_of = world.trained(value_sums[side][which], hogwild_value_sums[side][which], count * size, true);
      step.parameters[side][which] = {value, sum_of, count, size};
    }
  }
  if (step.dynamic) step.relations = relations.get();
  if (pick(2)) step.weights = weights.get();
  return static_cast<int>(pbg_train_steps(&step, workspace));
}

// A tile of a few scores, many of which are equal, with edges that ask any of its questions.
int rank(World& world) {
  const int64_t questions = 1 + world.pick(5), columns = 1 + world.pick(70), edges = world.pick(12);
  Array<float> scores(new float[questions * columns]), ties(new float[edges]), wins(new float[edges]);
  for (int64_t i = 0; i < questions * columns; ++i)
    scores[i] = world.pick(20) ? static_cast<float>(world.pick(9)) : std::nanf("");
  Array<int64_t> question = world.below(questions, edges), own = world.below(columns + 1, edges);
  for (int64_t i = 0; i < edges; ++i) {
    --own[i];  // -1: the true entity is not in the tile
    ties[i] = static_cast<float>(world.pick(9));
    wins[i] = ties[i] + static_cast<float>(world.pick(3));
  }
  Array<int64_t> start(new int64_t[questions + 1]{});
  for (int64_t i = 0; i < questions; ++i) start[i + 1] = start[i] + world.pick(4);
  Array<int64_t> answers = world.below(columns, start[questions]), counts(new int64_t[2 * edges]);
  int64_t capacity = 0, found = 0;
  for (int again = 0; again < 2; ++again) {  // with no room for what is close, then with as much as it takes
    capacity = found;
    Array<int64_t> close(new int64_t[2 * capacity]);
    const pbg_rank_tile tile{scores.get(), columns,     edges,         question.get(), ties.get(),  wins.get(),
                             own.get(),    start.get(), answers.get(), counts.get(),   close.get(), capacity};
    found = pbg_rank(&tile);
  }
  return found != capacity;
}

// Vectors of any dimension, some candidates equal to the true entity; more of them than are packed at once, now and then.
int rank_products(World& world) {
  const int64_t questions = 1 + world.pick(30), edges = world.pick(40), dimension = 1 + world.pick(40);
  const int64_t columns = 1 + world.pick(world.pick(8) ? 70 : 2100);
  Array<float> queries = world.floats(questions * dimension), candidates = world.floats(columns * dimension);
  Array<int64_t> question = world.below(questions, edges), own = world.below(columns + 1, edges);
  std::sort(question.get(), question.get() + edges);
  Array<float> ties = world.floats(edges), wins(new float[edges]);
  for (int64_t i = 0; i < edges; ++i) {
    --own[i];
    wins[i] = ties[i] + 0.01f;
  }
  Array<int64_t> start(new int64_t[questions + 1]{});
  for (int64_t i = 0; i < questions; ++i) start[i + 1] = start[i] + world.pick(4);
  Array<int64_t> answers = world.below(columns, start[questions]), counts(new int64_t[2 * edges]);
  int64_t capacity = 0, found = 0;
  for (int again = 0; again < 2 && found >= 0; ++again) {
    capacity = found;
    Array<int64_t> close(new int64_t[2 * capacity]);
    const struct pbg_rank_products asked{queries.get(), candidates.get(), questions,   columns,    dimension,
                                  edges,         question.get(),   ties.get(),  wins.get(), own.get(),
                                  start.get(),   answers.get(),    counts.get(), close.get(), capacity};
    found = pbg_rank_products(&asked);
  }
  return found >= 0 && found != capacity;
}

// Numbers of every width; in every other block the widest only, which fill all of the room they are given.
int write(World& world, bool widest) {
  const float kinds[] = {0, -0.5f, 1e-12f, 9.5f, -123456.78f, FLT_MAX, HUGE_VALF, -std::nanf("")};
  const int64_t rows = world.pick(4), columns = 1 + world.pick(4);
  Array<float> numbers(new float[rows * columns]);
  for (int64_t i = 0; i < rows * columns; ++i) numbers[i] = widest ? -FLT_MAX : kinds[world.pick(8)];
  Array<int64_t> ends(new int64_t[rows]);
  for (int64_t i = 0, end = 0; i < rows; ++i) ends[i] = end += world.pick(5);
  const int64_t length = rows ? ends[rows - 1] : 0, room = length + rows + 51 * rows * columns;
  Array<char> heads(new char[length]), out(new char[room]);
  std::fill_n(heads.get(), length, 'n');
  const pbg_lines lines{heads.get(), ends.get(), numbers.get(), rows, columns, out.get()};
  const int64_t written = pbg_write_lines(&lines);
  return widest ? written != room : written > room;
}

int run(unsigned seed, int64_t batches, bool halves, bool hogwild) {
  World world(seed, hogwild);
  pbg_workspace* workspace = pbg_workspace_new();
  int failed = 0;
  for (int64_t number = 0; number < batches; ++number) {
    failed |= train(world, workspace, number, halves);
    failed |= rank(world) | rank_products(world) | write(world, number % 2);
    if (number % 2) continue;
    pbg_workspace_free(workspace);  // the memory of larger batches would hide that one reaches too far
    workspace = pbg_workspace_new();
  }
  pbg_workspace_free(workspace);
  return failed;
}

}  // namespace

// Instruction set, batches, seed; then `hogwild` for threads that train the same tables, or `races` for reports of it.
int main(int count, char** arguments) {
  if (count < 4 || count > 5 || pbg_use_instruction_set(arguments[1])) return 2;
  const int64_t batches = std::atoll(arguments[2]);
  const unsigned seed = 2 * static_cast<unsigned>(std::atoll(arguments[3]));
  const bool halves = std::string(arguments[1]) == "avx512_bf16" || std::string(arguments[1]) == "amx";
  const std::string mode = count == 5 ? arguments[4] : "";
  if (mode == "hogwild") allow_races();
  int failed[2] = {};
  std::thread other([&] { failed[1] = run(seed + 1, batches, halves, !mode.empty()); });
  failed[0] = run(seed, batches, halves, !mode.empty());
  other.join();
  if (!failed[0] && !failed[1]) std::puts("done");
  return failed[0] | failed[1];
}
