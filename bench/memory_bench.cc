// The machine's own limits, and ours beside them: memcpy into warm memory, hashing, and the fused
// copy and hash of base/hash.h, with 1 and more threads. Rounds alternate between all of them, so
// that each meets the same machine. Prints one line of JSON: medians, least and most in GB/s.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/units.h"

namespace {

using std::chrono::steady_clock;

struct Options {
  uint64_t mib = 512;
  uint64_t chunk_kib = 1024;
  uint32_t threads_max = 2;
  int rounds = 7;
};

// Touched, aligned as slots are, and in plain pages as std::vector's are.
class Memory {
 public:
  Memory(uint64_t size_bytes, int fill)
      : data_(static_cast<std::byte*>(std::aligned_alloc(4096, size_bytes))), size_(size_bytes) {
    BACKSTAY_CHECK(data_ != nullptr, "no memory");
    std::memset(data_, fill, size_);
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<std::byte> Part(uint64_t offset, uint64_t size) const { return {data_ + offset, size}; }

 private:
  std::byte* const data_;
  const uint64_t size_;
};

using ChunkWork = std::function<uint64_t(uint64_t offset, uint64_t size)>;

struct Work {
  const char* name;
  bool whole;  // A thread's share in one call, not chunk by chunk: memcpy has another way for it.
  ChunkWork run;
};

// GB/s of `work` over all bytes; each thread takes an equal run of them.
double Measure(const Options& options, uint32_t threads, const Work& work) {
  const uint64_t bytes = options.mib * backstay::kMiB;
  const uint64_t share = bytes / threads;
  const uint64_t chunk = work.whole ? share : options.chunk_kib * backstay::kKiB;
  std::barrier start(threads + 1);  // Once to be ready, once to go.
  std::atomic<uint64_t> sink = 0;  // What was hashed is used, so it cannot be left out.
  std::vector<std::jthread> workers;
  for (uint32_t i = 0; i < threads; ++i) {
    workers.emplace_back([&, i] {
      start.arrive_and_wait();
      start.arrive_and_wait();
      uint64_t sum = 0;
      const uint64_t end = (i + 1) * share;
      for (uint64_t at = i * share; at < end; at += chunk)
        sum += work.run(at, std::min(chunk, end - at));
      sink += sum;
    });
  }
  start.arrive_and_wait();
  const auto begin = steady_clock::now();
  start.arrive_and_wait();
  workers.clear();
  const std::chrono::duration<double> took = steady_clock::now() - begin;
  return static_cast<double>(bytes) / 1e9 / took.count();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Memory limits: memcpy, hash, and copy with hash");
  app.add_option("--mib", options.mib, "bytes of one pass")->check(CLI::Range(2, 65536));
  app.add_option("--chunk-kib", options.chunk_kib, "size of one call")->check(CLI::Range(4, 65536));
  app.add_option("--threads", options.threads_max, "from 1 to so many")->check(CLI::Range(1, 64));
  app.add_option("--rounds", options.rounds, "medians of so many")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  const Memory source(options.mib * backstay::kMiB, 7);
  const Memory target(options.mib * backstay::kMiB, 1);
  const ChunkWork copy = [&](uint64_t offset, uint64_t size) {
    std::memcpy(target.Part(offset, size).data(), source.Part(offset, size).data(), size);
    return static_cast<uint64_t>(target.Part(offset, 1)[0]);
  };
  const std::vector<Work> works = {
      {"memcpy", true, copy},
      {"memcpy of chunks", false, copy},
      {"hash", false,
       [&](uint64_t offset, uint64_t size) {
         return backstay::HashBytes(std::span<const std::byte>(source.Part(offset, size))).low;
       }},
      {"copy and hash", false,
       [&](uint64_t offset, uint64_t size) {
         return backstay::CopyAndHash(target.Part(offset, size), source.Part(offset, size)).low;
       }},
  };
  nlohmann::json results = nlohmann::json::array();
  for (uint32_t threads = 1; threads <= options.threads_max; ++threads) {
    std::vector<std::vector<double>> rates(works.size());
    for (int round = 0; round <= options.rounds; ++round) {
      for (size_t i = 0; i < works.size(); ++i) {
        const double rate = Measure(options, threads, works[i]);
        if (round > 0) rates[i].push_back(rate);  // The first one warms up.
      }
    }
    for (size_t i = 0; i < works.size(); ++i) {
      std::sort(rates[i].begin(), rates[i].end());
      results.push_back({{"what", works[i].name},
                         {"threads", threads},
                         {"median", rates[i][rates[i].size() / 2]},
                         {"min", rates[i].front()},
                         {"max", rates[i].back()}});
    }
  }
  std::cout << results.dump() << "\n";
  return 0;
}
