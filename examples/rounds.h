#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace backstay::example {

// One group of ranks that the launcher put together. Round 0 is the one that the trainers were
// started as.
struct Round {
  uint64_t number = 0;
  int rank = 0;
  int world_size = 1;
};

// How the launcher tells the trainers who is in the next round: it puts a file `round-N` into the
// rendezvous directory, with the members' names, one a line, in rank order. It writes the file
// under another name and renames it, so nobody reads half of one. In a shell:
//
//   printf '%s\n' node-1 node-2 node-5 node-4 > "$dir/.round-1"
//   mv "$dir/.round-1" "$dir/round-1"
class Rounds {
 public:
  // What to do between two looks at the directory, for so long.
  using Idle = std::function<void(std::chrono::milliseconds)>;

  Rounds(std::filesystem::path directory, std::string member);

  // The number of the newest round published.
  std::optional<uint64_t> Newest() const;

  // Waits for a round of at least `number_min` and returns the newest there is; nothing at the
  // deadline. Throws std::runtime_error when that round leaves this member out.
  std::optional<Round> Wait(uint64_t number_min, std::chrono::milliseconds timeout,
                            const Idle& idle) const;

  // The launcher's part.
  static void Publish(const std::filesystem::path& directory, uint64_t number,
                      const std::vector<std::string>& members);

 private:
  const std::filesystem::path directory_;
  const std::string member_;
};

}  // namespace backstay::example
