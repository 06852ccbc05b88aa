#pragma once

#include <grpcpp/support/status.h>

#include "base/status.h"

namespace backstay::tools {

// A refusal as it travels over gRPC: the code nearest in meaning, and a Refusal as details.
grpc::Status ToGrpc(const Status& status);
// What ToGrpc() returned, or what gRPC itself has to say: kUnavailable, kDeadline.
Status FromGrpc(const grpc::Status& status);

}  // namespace backstay::tools
