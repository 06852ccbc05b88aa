#include "tools/cli/names.h"

#include <array>
#include <cstdint>

namespace backstay::tools {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

// Bytes of the well-formed UTF-8 character at the start of `text`; 0: there is none (RFC 3629).
size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < size) return 0;
  uint32_t code = first & (0xffU >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fU);
  }
  static constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kSmallest[size] || code > 0x10ffff || surrogate ? 0 : size;
}

// C0, DEL and C1: what could steer a terminal.
bool IsControl(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

void AppendHex(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kDigits[byte >> 4];
    out += kDigits[byte & 0xf];
  }
}

int DigitValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 0x10;
}

std::string Show(std::string_view text, bool is_name) {
  std::string out;
  while (!text.empty()) {
    const size_t size = CharacterBytes(text);
    const std::string_view character = text.substr(0, size == 0 ? 1 : size);
    if (is_name && character == "\\") {
      out += "\\\\";
    } else if (!is_name && character == "\n") {
      out += ' ';
    } else if (size == 0 || IsControl(character)) {
      AppendHex(character, out);
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace

std::string ShowName(std::string_view name) { return Show(name, /*is_name=*/true); }

std::string ShowText(std::string_view text) { return Show(text, /*is_name=*/false); }

Result<std::string> ReadName(std::string_view shown) {
  const Status malformed = InvalidArgument("the name '" + ShowText(shown) +
                                           "' has a backslash that starts neither \\\\ nor \\xNN");
  std::string name;
  for (size_t i = 0; i < shown.size(); ++i) {
    if (shown[i] != '\\') {
      name += shown[i];
      continue;
    }
    if (shown.substr(i, 2) == "\\\\") {
      name += '\\';
      ++i;
      continue;
    }
    if (shown.substr(i, 2) != "\\x" || shown.size() < i + 4) return malformed;
    const int high = DigitValue(shown[i + 2]);
    const int low = DigitValue(shown[i + 3]);
    if (high > 0xf || low > 0xf) return malformed;
    name += static_cast<char>(high << 4 | low);
    i += 3;
  }
  if (name.empty()) return InvalidArgument("a name is empty");
  if (name.find('\0') != std::string::npos) return InvalidArgument("a name holds a NUL");
  return name;
}

}  // namespace backstay::tools
