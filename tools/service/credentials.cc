#include "tools/service/credentials.h"

#include <fstream>
#include <iterator>

namespace backstay::tools {
namespace {

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file || text.empty()) return InvalidArgument("cannot read the PEM file " + path);
  return text;
}

}  // namespace

Result<Credentials> LoadCredentials(const std::string& ca_file, const std::string& certificate_file,
                                    const std::string& key_file) {
  if (ca_file.empty())
    return Credentials{grpc::InsecureChannelCredentials(), grpc::InsecureServerCredentials()};
  BACKSTAY_ASSIGN_OR_RETURN(const std::string ca, ReadFile(ca_file));
  BACKSTAY_ASSIGN_OR_RETURN(const std::string certificate, ReadFile(certificate_file));
  BACKSTAY_ASSIGN_OR_RETURN(const std::string key, ReadFile(key_file));

  grpc::SslCredentialsOptions channel;
  channel.pem_root_certs = ca;
  channel.pem_cert_chain = certificate;
  channel.pem_private_key = key;

  grpc::SslServerCredentialsOptions server(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  server.pem_root_certs = ca;
  server.pem_key_cert_pairs.push_back({key, certificate});
  return Credentials{grpc::SslCredentials(channel), grpc::SslServerCredentials(server)};
}

}  // namespace backstay::tools
