#include "base/version.h"

namespace backstay {

const char* const kVersion = BACKSTAY_VERSION;

}  // namespace backstay
