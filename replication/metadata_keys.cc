#include "replication/metadata_keys.h"

#include <algorithm>

namespace backstay::replication {
namespace {

constexpr std::string_view kLeaderSuffix = "/leader";
constexpr std::string_view kRecordSuffix = "/record";

// An escaped byte takes three.
static_assert(3 * kNameBytesMax + kNodeStartsPrefix.size() <= kMetadataKeyBytesMax);
static_assert(3 * kNameBytesMax + kJobsPrefix.size() + kRecordSuffix.size() <=
              kMetadataKeyBytesMax);

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

// The value of an upper-case hexadecimal digit, or nothing.
int DigitValue(char c) {
  constexpr int kNoDigit = 16;
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return kNoDigit;
}

std::string Key(std::string_view prefix, std::string_view name, std::string_view suffix) {
  return std::string(prefix) + EscapeName(name) + std::string(suffix);
}

}  // namespace

std::string EscapeName(std::string_view name) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : name) {
    if (IsPlain(c)) {
      escaped += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    escaped += '%';
    escaped += kDigits[byte >> 4];
    escaped += kDigits[byte & 0xf];
  }
  return escaped;
}

Result<std::string> UnescapeName(std::string_view escaped) {
  std::string name;
  for (size_t i = 0; i < escaped.size(); ++i) {
    if (IsPlain(escaped[i])) {
      name += escaped[i];
      continue;
    }
    if (escaped[i] != '%' || i + 2 >= escaped.size())
      return Corrupt("an escaped name is malformed");
    const int high = DigitValue(escaped[i + 1]);
    const int low = DigitValue(escaped[i + 2]);
    if (high > 0xf || low > 0xf) return Corrupt("an escaped name is malformed");
    name += static_cast<char>(high << 4 | low);
    if (IsPlain(name.back())) return Corrupt("an escaped name escapes what it must not");
    i += 2;
  }
  return name;
}

Status CheckName(std::string_view what, std::string_view name) {
  if (name.empty()) return InvalidArgument("the " + std::string(what) + "'s name is empty");
  if (name.size() > kNameBytesMax) {
    return InvalidArgument("the " + std::string(what) + "'s name has " +
                           std::to_string(name.size()) + " bytes; the limit is " +
                           std::to_string(kNameBytesMax));
  }
  if (name.find('\0') != std::string_view::npos) {
    return InvalidArgument("the " + std::string(what) + "'s name holds a NUL byte");
  }
  return Status::Ok();
}

std::string NodeKey(const NodeId& node) { return Key(kNodesPrefix, node.value, ""); }
std::string NodeStartsKey(const NodeId& node) { return Key(kNodeStartsPrefix, node.value, ""); }
std::string LeaderKey(const JobName& job) { return Key(kJobsPrefix, job.value, kLeaderSuffix); }
std::string JobRecordKey(const JobName& job) { return Key(kJobsPrefix, job.value, kRecordSuffix); }

Result<NodeId> ParseNodeKey(std::string_view key) {
  if (!key.starts_with(kNodesPrefix)) return Corrupt("a node's key does not start as one");
  BACKSTAY_ASSIGN_OR_RETURN(std::string name, UnescapeName(key.substr(kNodesPrefix.size())));
  if (!CheckName("node", name).ok()) return Corrupt("a node's key holds a name that none can have");
  return NodeId(std::move(name));
}

Result<JobName> ParseJobRecordKey(std::string_view key) {
  if (!key.starts_with(kJobsPrefix)) return Corrupt("a job's key does not start as one");
  if (!key.ends_with(kRecordSuffix)) return NotFound("not the key of a job's record");
  key.remove_prefix(kJobsPrefix.size());
  if (key.size() <= kRecordSuffix.size()) return Corrupt("a job's key holds no name");
  key.remove_suffix(kRecordSuffix.size());
  BACKSTAY_ASSIGN_OR_RETURN(std::string name, UnescapeName(key));
  if (!CheckName("job", name).ok()) return Corrupt("a job's key holds a name that none can have");
  return JobName(std::move(name));
}

const KeyValue* FindPair(const RangeResult& range, std::string_view key) {
  const auto same = [key](const KeyValue& pair) { return pair.key == key; };
  const auto found = std::find_if(range.pairs.begin(), range.pairs.end(), same);
  return found == range.pairs.end() ? nullptr : &*found;
}

}  // namespace backstay::replication
