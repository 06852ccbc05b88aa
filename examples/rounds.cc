#include "examples/rounds.h"

#include <charconv>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace backstay::example {
namespace {

constexpr std::string_view kPrefix = "round-";
// Short beside any restart of a trainer, and a few hundred directory reads a minute cost nothing.
constexpr std::chrono::milliseconds kPollInterval{20};

std::optional<uint64_t> NumberOf(const std::string& file_name) {
  if (!file_name.starts_with(kPrefix)) return std::nullopt;
  uint64_t number = 0;
  const char* end = file_name.data() + file_name.size();
  const auto [parsed, error] = std::from_chars(file_name.data() + kPrefix.size(), end, number);
  if (error != std::errc() || parsed != end) return std::nullopt;
  return number;
}

}  // namespace

Rounds::Rounds(std::filesystem::path directory, std::string member)
    : directory_(std::move(directory)), member_(std::move(member)) {}

std::optional<uint64_t> Rounds::Newest() const {
  std::optional<uint64_t> newest;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    newest = std::max(newest, NumberOf(entry.path().filename().string()));
  }
  return newest;
}

std::optional<Round> Rounds::Wait(uint64_t number_min, std::chrono::milliseconds timeout,
                                  const Idle& idle) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::optional<uint64_t> newest = Newest();
  while (!newest || *newest < number_min) {
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    idle(kPollInterval);
    newest = Newest();
  }

  Round round{.number = *newest, .rank = -1, .world_size = 0};
  std::ifstream file(directory_ / (std::string(kPrefix) + std::to_string(*newest)));
  for (std::string name; std::getline(file, name); ++round.world_size) {
    if (name == member_) round.rank = round.world_size;
  }
  if (round.rank < 0) {
    throw std::runtime_error("round " + std::to_string(*newest) + " has no member " + member_);
  }
  return round;
}

void Rounds::Publish(const std::filesystem::path& directory, uint64_t number,
                     const std::vector<std::string>& members) {
  const std::string name = std::string(kPrefix) + std::to_string(number);
  const std::filesystem::path written = directory / ("." + name);
  {
    std::ofstream file(written);
    for (const std::string& member : members) file << member << '\n';
    if (!file.flush()) throw std::runtime_error("cannot write " + written.string());
  }
  std::filesystem::rename(written, directory / name);
}

}  // namespace backstay::example
