// The native engine: one translation unit with a plain C interface, compiled once for each instruction set; the fastest
// that the CPU has is picked when the library is loaded.

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define INLINE inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))
#define PUBLIC extern "C" __attribute__((visibility("default")))

#include "lines.hpp"
#include "rank.hpp"
#include "step.hpp"

#if defined(__clang__)
#define BEGIN_TARGET(features) _Pragma(TEXT(clang attribute push(__attribute__((target(features))), apply_to = function)))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(features) _Pragma("GCC push_options") _Pragma(TEXT(GCC target(features)))
#define END_TARGET _Pragma("GCC pop_options")
#endif
#define TEXT(x) #x

#define PBG_HALF 0
#define PBG_VNNI 0
#define PBG_AMX 0

namespace portable {
#define PBG_WIDTH 4
#define KEEP_IN_REGISTER(value)
#include "all.inc"
#undef KEEP_IN_REGISTER
#undef PBG_WIDTH
}  // namespace portable

#if defined(__x86_64__)
// Without it, the compiler loads an operand again for every product it is in.
#define KEEP_IN_REGISTER(value) __asm__("" : "+v"(value))

BEGIN_TARGET("avx2,fma,bmi2")
namespace avx2 {
#define PBG_WIDTH 8
#include "all.inc"
#undef PBG_WIDTH
}  // namespace avx2
END_TARGET

BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")
namespace avx512 {
#define PBG_WIDTH 16
#include "all.inc"
#undef PBG_WIDTH
}  // namespace avx512
END_TARGET

// Ranking alone, for CPUs without bfloat16.
#undef PBG_VNNI
#define PBG_VNNI 1
BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi2")
namespace avx512_vnni {
#define PBG_WIDTH 16
#include "simd.inc"
#include "kernels.inc"
#include "rank.inc"
#include "integers.inc"
#include "screen.inc"
#undef PBG_WIDTH
}  // namespace avx512_vnni
END_TARGET

#undef PBG_HALF
#define PBG_HALF 1
BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx2,fma,bmi2")
namespace avx512_bf16 {
#define PBG_WIDTH 16
#include "all.inc"
#undef PBG_WIDTH
}  // namespace avx512_bf16

#if defined(__linux__)
#undef PBG_AMX
#define PBG_AMX 1
namespace amx {
#define PBG_WIDTH 16
#include "all.inc"
#undef PBG_WIDTH
}  // namespace amx
#endif
END_TARGET
#endif

namespace {

#include "lines.inc"

struct InstructionSet {
  const char* name;
  bool (*usable)();
  int64_t (*train_step)(pbg_step*, pbg_workspace*);
  int64_t (*rank_tile)(const pbg_rank_tile&);
  int64_t (*rank_products)(const pbg_rank_products&);
};

#if defined(__x86_64__)
// Every feature that a set is compiled with is asked for: a hypervisor may hide any of them.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool has_avx512_bf16() { return has_avx512_vnni() && __builtin_cpu_supports("avx512bf16"); }

#if defined(__linux__)
// The kernel makes room for the registers of a process that asks for them.
bool has_amx() {
  constexpr unsigned kBfloat16 = 1u << 22, kRegisters = 1u << 24, kBytes = 1u << 25, kAll = kBfloat16 | kRegisters | kBytes;
  constexpr long kAsk = 0x1023, kData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  unsigned a, b, c, d;
  return has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAll) == kAll &&
         syscall(SYS_arch_prctl, kAsk, kData) == 0;
}
#endif
#endif

const InstructionSet kSets[] = {
#if defined(__x86_64__)
#if defined(__linux__)
    {"amx", has_amx, amx::train_step, amx::rank_tile, amx::rank_products},
#endif
    {"avx512_bf16", has_avx512_bf16, avx512_bf16::train_step, avx512_bf16::rank_tile, avx512_bf16::rank_products},
    {"avx512_vnni", has_avx512_vnni, avx512::train_step, avx512::rank_tile, avx512_vnni::rank_products},
    {"avx512", has_avx512, avx512::train_step, avx512::rank_tile, avx512::rank_products},
    {"avx2", has_avx2, avx2::train_step, avx2::rank_tile, avx2::rank_products},
#endif
    {"portable", [] { return true; }, portable::train_step, portable::rank_tile, portable::rank_products},
};

const InstructionSet* fastest() {
  for (const InstructionSet& set : kSets)
    if (set.usable()) return &set;
  return nullptr;
}

const InstructionSet* chosen = fastest();

// One of several steps.
pbg_step step_of(const pbg_step& steps, int64_t number) {
  pbg_step step = steps;
  step.steps -= number;
  step.lr *= steps.rates[number];
  step.relation_lr *= steps.rates[number];
  if (steps.keys) step.key = steps.keys[number];
  const int64_t edges = number * steps.edges, chunks = number * ((steps.edges + steps.chunk - 1) / steps.chunk);
  for (int side = 0; side < 2; ++side) {
    step.ends[side] += edges;
    if (steps.drawn[side] && !steps.all[side]) step.drawn[side] += chunks * steps.drawn_per_chunk[side];
  }
  if (steps.relations) step.relations += edges;
  if (steps.weights) step.weights += edges;
  if (steps.selves) step.selves += edges;
  return step;
}

}  // namespace

// Changes with every change of a structure or of a function's arguments.
PUBLIC int32_t pbg_abi() { return 9; }

// Of what sources it was built, by setup.py: a test compares them with those beside it.
#ifndef PBG_SOURCES
#define PBG_SOURCES ""
#endif
PUBLIC const char* pbg_sources() { return PBG_SOURCES; }

PUBLIC const char* pbg_instruction_set() { return chosen->name; }

// For tests: 0, or -1 where there is no such set or this CPU lacks it. Not while another thread computes.
PUBLIC int32_t pbg_use_instruction_set(const char* name) {
  for (const InstructionSet& set : kSets) {
    if (std::strcmp(set.name, name) != 0 || !set.usable()) continue;
    chosen = &set;
    return 0;
  }
  return -1;
}

PUBLIC pbg_workspace* pbg_workspace_new() { return new (std::nothrow) pbg_workspace; }
PUBLIC void pbg_workspace_free(pbg_workspace* workspace) { delete workspace; }

// Trains batches one after another; 0, or -1 when memory is short (tables may have been changed by then, the workspace is as new).
PUBLIC int64_t pbg_train_steps(const pbg_step* steps, pbg_workspace* workspace) {
  try {
    for (int64_t number = 0; number < steps->steps; ++number) {
      pbg_step step = step_of(*steps, number);
      chosen->train_step(&step, workspace);
      double* figures = steps->figures + 4 * number;
      figures[0] = step.loss;
      figures[1] = step.penalty;
      for (int side = 0; side < 2; ++side) figures[2 + side] = static_cast<double>(step.violators[side]);
    }
    return 0;
  } catch (const std::bad_alloc&) {
    // A step that was broken off leaves marks in its workspace, which the next one must not find.
    workspace->~pbg_workspace();
    new (workspace) pbg_workspace;
    return -1;
  }
}

// Counts which candidates are no worse than true entities; returns how many are close, which may be more than fit.
PUBLIC int64_t pbg_rank(const pbg_rank_tile* tile) { return chosen->rank_tile(*tile); }

// The same for inner products of vectors; -1 where floats are better, or memory is short.
PUBLIC int64_t pbg_rank_products(const pbg_rank_products* asked) {
  try {
    return chosen->rank_products(*asked);
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Writes rows of numbers as lines of text; returns the bytes.
PUBLIC int64_t pbg_write_lines(const pbg_lines* lines) { return write_lines(*lines); }
