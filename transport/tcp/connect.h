#pragma once

#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace backstay::transport {

// A connected, blocking socket to "host:port", tried at each of the name's addresses. Gives up
// after `timeout` for each, or as soon as `wake_fd` (an eventfd) becomes readable. Blocks; never on
// an executor.
Result<UniqueFd> ConnectWithin(const std::string& address, Duration timeout, int wake_fd);

// A blocking send or receive that moves no byte for this long fails with EAGAIN.
void SetIoTimeout(int fd, Duration timeout);

}  // namespace backstay::transport
