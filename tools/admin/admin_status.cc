#include "tools/admin/admin_status.h"

#include "tools/admin/admin.pb.h"

namespace backstay::tools {
namespace {

// For programs that know only gRPC; ours read the Refusal.
grpc::StatusCode GrpcCode(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return grpc::StatusCode::OK;
    case StatusCode::kNotFound:
      return grpc::StatusCode::NOT_FOUND;
    case StatusCode::kCorrupt:
      return grpc::StatusCode::DATA_LOSS;
    case StatusCode::kNoSpace:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case StatusCode::kStale:
      return grpc::StatusCode::FAILED_PRECONDITION;
    case StatusCode::kUnavailable:
      return grpc::StatusCode::UNAVAILABLE;
    case StatusCode::kDeadline:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    case StatusCode::kUnknownOutcome:
      return grpc::StatusCode::UNKNOWN;
    case StatusCode::kInvalidArgument:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case StatusCode::kPermission:
      return grpc::StatusCode::PERMISSION_DENIED;
  }
  return grpc::StatusCode::UNKNOWN;
}

// gRPC sends a message as a header of percent-encoded UTF-8, limited to some KiB; the Refusal has
// all of it.
constexpr size_t kMessageBytesMax = 1024;

}  // namespace

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  wire::Refusal refusal;
  refusal.set_code(static_cast<uint32_t>(status.code()));
  refusal.set_message(status.message().substr(0, 4 * kMessageBytesMax));
  return grpc::Status(GrpcCode(status.code()), status.message().substr(0, kMessageBytesMax),
                      refusal.SerializeAsString());
}

Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return Status::Ok();
  wire::Refusal refusal;
  if (!status.error_details().empty() && refusal.ParseFromString(status.error_details()) &&
      refusal.code() != 0) {
    return Status(StatusCodeFromNumber(static_cast<int>(refusal.code())), refusal.message());
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return DeadlineExceeded("no answer in time");
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return Unavailable(
        "what answers there does not know this question: not a backstayd, or an older one");
  }
  return Unavailable(status.error_message());
}

}  // namespace backstay::tools
