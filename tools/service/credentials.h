#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace backstay::tools {

// What services and the command prove to each other over gRPC.
struct Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;
  std::shared_ptr<grpc::ServerCredentials> server;
};

// Mutual TLS from three PEM files: both sides must have a certificate that `ca_file` signed. All
// empty: no TLS, for loopback and for networks that somebody vouched for. kInvalidArgument names
// the file that could not be read.
Result<Credentials> LoadCredentials(const std::string& ca_file, const std::string& certificate_file,
                                    const std::string& key_file);

}  // namespace backstay::tools
