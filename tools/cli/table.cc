#include "tools/cli/table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <utility>

namespace backstay::tools {

Table::Table(const std::vector<std::string>& headings) : rows_(1) {
  for (const std::string& heading : headings) {
    right_.push_back(heading.starts_with('>'));
    rows_[0].push_back(right_.back() ? heading.substr(1) : heading);
  }
}

void Table::Add(std::vector<std::string> cells) {
  cells.resize(right_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths(right_.size());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - DisplayWidth(row[i]), ' ');
      line += (i == 0 ? "" : "  ") + (right_[i] ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

std::string FormatAge(int64_t ms) {
  constexpr int64_t kSecond = 1000;
  constexpr int64_t kMinute = 60 * kSecond;
  constexpr int64_t kHour = 60 * kMinute;
  constexpr int64_t kDay = 24 * kHour;
  if (ms < kSecond / 10) return "now";
  if (ms >= 2 * kDay) return std::to_string(ms / kDay) + " d";
  if (ms >= 2 * kHour) return std::to_string(ms / kHour) + " h";
  if (ms >= 2 * kMinute) return std::to_string(ms / kMinute) + " min";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f s", static_cast<double>(ms) / 1000);
  return text.data();
}

std::string FormatAgeSince(int64_t unix_ms, int64_t now_unix_ms) {
  return unix_ms == 0 ? "-" : FormatAge(now_unix_ms - unix_ms);
}

std::string FormatAgo(int64_t unix_ms, int64_t now_unix_ms) {
  const std::string age = FormatAgeSince(unix_ms, now_unix_ms);
  return age == "now" ? "just now" : age + " ago";
}

std::string FormatClock(int64_t unix_ms) {
  const std::time_t seconds = static_cast<std::time_t>(unix_ms / 1000);
  std::tm local{};
  localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%02d:%02d:%02d.%03d", local.tm_hour, local.tm_min,
                local.tm_sec, static_cast<int>(unix_ms % 1000));
  return text.data();
}

std::string Count(uint64_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

}  // namespace backstay::tools
