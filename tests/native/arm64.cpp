// Calls the native library for a process of another machine, over pipes. A request is the number of a function, a number to
// pass on, and memory: regions with their addresses there, the first of which is the argument. Words of structures that are
// such an address are replaced by that of the copy. The answer is the result and the memory as it is then.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

struct pbg_workspace;
struct pbg_step;
struct pbg_rank_tile;
struct pbg_rank_products;
struct pbg_lines;

extern "C" {
int32_t pbg_abi();
pbg_workspace* pbg_workspace_new();
void pbg_workspace_free(pbg_workspace*);
int64_t pbg_train_steps(const pbg_step*, pbg_workspace*);
int64_t pbg_rank(const pbg_rank_tile*);
int64_t pbg_rank_products(const pbg_rank_products*);
int64_t pbg_write_lines(const pbg_lines*);
int32_t pbg_use_instruction_set(const char*);
}

namespace {

struct Region {
  uint64_t address, size, is_structure;
  std::unique_ptr<char[]> bytes;  // of exactly this size
};

void get(void* to, size_t size) {
  if (size && std::fread(to, size, 1, stdin) != 1) std::exit(0);  // the other process has ended
}

void put(const void* from, size_t size) {
  if (size && std::fwrite(from, size, 1, stdout) != 1) std::exit(1);
}

void replace(std::vector<Region>& regions, const std::map<uint64_t, uint64_t>& places) {
  for (Region& region : regions) {
    for (uint64_t at = 0; region.is_structure && at + 8 <= region.size; at += 8) {
      uint64_t word;
      std::memcpy(&word, region.bytes.get() + at, 8);
      const auto found = places.find(word);
      if (word && found != places.end()) std::memcpy(region.bytes.get() + at, &found->second, 8);
    }
  }
}

int64_t call(uint64_t function, uint64_t number, char* argument) {
  auto* workspace = reinterpret_cast<pbg_workspace*>(number);
  switch (function) {
    case 0:
      return pbg_abi();
    case 1:
      return reinterpret_cast<int64_t>(pbg_workspace_new());
    case 2:
      pbg_workspace_free(workspace);
      return 0;
    case 3:
      return pbg_train_steps(reinterpret_cast<pbg_step*>(argument), workspace);
    case 4:
      return pbg_rank(reinterpret_cast<pbg_rank_tile*>(argument));
    case 5:
      return pbg_rank_products(reinterpret_cast<struct pbg_rank_products*>(argument));
    case 6:
      return pbg_write_lines(reinterpret_cast<pbg_lines*>(argument));
    case 7:
      return pbg_use_instruction_set(argument);
  }
  std::exit(2);
}

}  // namespace

int main() {
  for (;;) {
    uint64_t head[3];
    get(head, sizeof head);
    std::vector<Region> regions(head[2]);
    std::map<uint64_t, uint64_t> here, there;
    for (Region& region : regions) {
      get(&region, 24);
      region.bytes.reset(new char[region.size]);
      get(region.bytes.get(), region.size);
      const auto place = reinterpret_cast<uint64_t>(region.bytes.get());
      here[region.address] = place;
      there[place] = region.address;
    }
    replace(regions, here);
    const int64_t result = call(head[0], head[1], regions.empty() ? nullptr : regions[0].bytes.get());
    replace(regions, there);
    put(&result, 8);
    for (Region& region : regions) put(region.bytes.get(), region.size);
    std::fflush(stdout);
  }
}
