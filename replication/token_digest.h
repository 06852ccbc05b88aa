#pragma once

#include <string>
#include <string_view>

namespace backstay::replication {

// SHA-256 of a job's token: what services tell each other, so that the token itself stays on its
// node. 32 bytes.
std::string TokenDigest(std::string_view token);

}  // namespace backstay::replication
