#pragma once

namespace backstay {

// The release, as CMake's project() has it.
extern const char* const kVersion;

}  // namespace backstay
