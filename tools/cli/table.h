#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace backstay::tools {

// Columns as wide as their widest cell, two spaces apart; numbers to the right.
class Table {
 public:
  // A heading that starts with '>' is of a column of numbers, without the '>'.
  explicit Table(const std::vector<std::string>& headings);

  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.size() == 1; }
  std::string Render() const;

 private:
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;  // The headings first.
};

// Columns that UTF-8 text takes on a terminal: one for each character.
size_t DisplayWidth(std::string_view text);

// "3.2 s", "4 min", "5 h", "6 d"; "now" below a tenth of a second, and for clocks that differ.
std::string FormatAge(int64_t ms);
// As FormatAge() of the time since `unix_ms`; "-" for 0.
std::string FormatAgeSince(int64_t unix_ms, int64_t now_unix_ms);
// "3.5 s ago", or "just now".
std::string FormatAgo(int64_t unix_ms, int64_t now_unix_ms);
// "14:03:22.417" in the local time zone.
std::string FormatClock(int64_t unix_ms);
// "1 node", "2 nodes".
std::string Count(uint64_t count, std::string_view what);

}  // namespace backstay::tools
