#include "examples/text.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>

#include "examples/random.h"

namespace backstay::example {
namespace {

constexpr const char* kLicenceDirectory = "/usr/share/common-licenses";

void AppendFile(const std::filesystem::path& path, std::vector<uint8_t>& text) {
  std::ifstream file(path, std::ios::binary);
  text.insert(text.end(), std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (!file) throw std::runtime_error("cannot read the text " + path.string());
}

}  // namespace

std::vector<uint8_t> LoadText(const std::string& path) {
  std::vector<uint8_t> text;
  if (!path.empty()) {
    AppendFile(path, text);
    return text;
  }
  std::error_code error;
  std::vector<std::filesystem::path> licences;
  for (const auto& entry : std::filesystem::directory_iterator(kLicenceDirectory, error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) licences.push_back(entry.path());
  }
  if (licences.empty()) {
    throw std::runtime_error(std::string("no licence texts in ") + kLicenceDirectory +
                             "; name a text with --text");
  }
  std::sort(licences.begin(), licences.end());
  for (const auto& licence : licences) AppendFile(licence, text);
  return text;
}

Sampler::Sampler(size_t text_size_bytes, size_t context_size_bytes, uint64_t seed)
    : position_count_(text_size_bytes > context_size_bytes ? text_size_bytes - context_size_bytes
                                                           : 0),
      context_size_bytes_(context_size_bytes),
      seed_(seed) {
  if (position_count_ == 0) {
    throw std::runtime_error("the text has " + std::to_string(text_size_bytes) +
                             " bytes; the model needs more than " +
                             std::to_string(context_size_bytes));
  }
}

size_t Sampler::Position(uint64_t sample) const {
  const uint64_t epoch = sample / position_count_;
  const uint64_t index = sample % position_count_;
  // index -> index * stride + start is a permutation of the positions when the stride shares no
  // factor with their count.
  const uint64_t drawn = Mix(Mix(seed_) + epoch * kGoldenGamma);
  uint64_t stride = drawn % position_count_;
  while (std::gcd(stride, position_count_) != 1) stride = (stride + 1) % position_count_;
  const uint64_t start = Mix(drawn + kGoldenGamma) % position_count_;
  const auto product = static_cast<unsigned __int128>(index) * stride + start;
  return context_size_bytes_ + static_cast<size_t>(product % position_count_);
}

}  // namespace backstay::example
