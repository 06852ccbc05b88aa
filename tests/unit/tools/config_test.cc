#include "tools/service/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/socket.h"
#include "replication/node_record.h"

namespace backstay::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<ServiceConfig> Parse(std::vector<std::string> arguments) {
  Result<ConfigOrText> parsed = ParseServiceConfig(arguments);
  if (!parsed.ok()) return parsed.status();
  return std::get<ServiceConfig>(*parsed);
}

// A config file that is removed with the object.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) {
    char path[] = "/tmp/backstay-config-XXXXXX";
    const int fd = mkstemp(path);
    EXPECT_GE(fd, 0);
    path_ = path;
    std::ofstream(path_) << text;
    ::close(fd);
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(ServiceConfig, FlagsSetEverything) {
  const Result<ServiceConfig> config =
      Parse({"--node-id", "n1", "--domains", "rack-7,host-12", "--memory-budget", "4GiB",
             "--serve-metadata", "--lease-ttl-ms", "1500", "--chunk", "2MiB"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->node_id, "n1");
  EXPECT_THAT(config->domains, ElementsAre("rack-7", "host-12"));
  EXPECT_EQ(config->memory_budget_bytes, 4 * kGiB);
  EXPECT_EQ(config->chunk_bytes, 2 * kMiB);
  EXPECT_EQ(config->lease_ttl, std::chrono::milliseconds(1500));
}

TEST(ServiceConfig, FileAndFlagsTogetherFlagsWin) {
  const ConfigFile file(
      "node-id = \"from-file\"\nserve-metadata = true\nmemory-budget = \"1GiB\"\n");
  const Result<ServiceConfig> config = Parse({"--config", file.path(), "--memory-budget", "2GiB"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->node_id, "from-file");
  EXPECT_EQ(config->memory_budget_bytes, 2 * kGiB);
}

TEST(ServiceConfig, UnknownKeyNamesTheNearest) {
  const ConfigFile file("memory-bugdet = \"1GiB\"\nserve-metadata = true\n");
  const Result<ServiceConfig> config = Parse({"--config", file.path()});
  ASSERT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(config.status().message(), HasSubstr("'memory-bugdet'"));
  EXPECT_THAT(config.status().message(), HasSubstr("did you mean 'memory-budget'"));
}

TEST(ServiceConfig, UnknownFlagNamesTheNearest) {
  const Result<ServiceConfig> config = Parse({"--serve-metadata", "--lane", "2"});
  ASSERT_EQ(config.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(config.status().message(), HasSubstr("'lanes'"));
}

TEST(ServiceConfig, MissingFileIsAnError) {
  EXPECT_EQ(Parse({"--config", "/nonexistent/backstay.conf", "--serve-metadata"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ServiceConfig, NonLoopbackNeedsTlsOrInsecure) {
  const std::vector<std::string> open = {"--serve-metadata", "--control-address", "0.0.0.0:7420",
                                         "--advertise-host", "10.0.0.1"};
  EXPECT_EQ(Parse(open).status().code(), StatusCode::kPermission);
  std::vector<std::string> insecure = open;
  insecure.push_back("--insecure");
  EXPECT_TRUE(Parse(insecure).ok());
  std::vector<std::string> tls = open;
  tls.insert(tls.end(), {"--tls-ca", "ca.pem", "--tls-certificate", "c.pem", "--tls-key", "k.pem"});
  EXPECT_TRUE(Parse(tls).ok());
}

TEST(ServiceConfig, WildcardNeedsAnAddressForPeers) {
  EXPECT_EQ(
      Parse({"--serve-metadata", "--insecure", "--data-address", "0.0.0.0:1"}).status().code(),
      StatusCode::kInvalidArgument);
}

TEST(ServiceConfig, HalfOfTlsIsRefused) {
  EXPECT_EQ(Parse({"--serve-metadata", "--tls-ca", "ca.pem"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ServiceConfig, MetadataMustBeSomewhere) {
  EXPECT_EQ(Parse({"--node-id", "n1"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Parse({"--serve-metadata", "--metadata-address", "127.0.0.1:1"}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ServiceConfig, BadValuesNameTheFlag) {
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--chunk", "3MiB"},
                                             {"--lanes", "0"},
                                             {"--memory-budget", "much"},
                                             {"--lease-ttl-ms", "1"},
                                             {"--control-address", "nowhere"}}) {
    std::vector<std::string> arguments = {"--serve-metadata"};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const Result<ServiceConfig> config = Parse(arguments);
    ASSERT_EQ(config.status().code(), StatusCode::kInvalidArgument) << bad[0] << " " << bad[1];
    EXPECT_THAT(config.status().message(), HasSubstr(bad[0]));
  }
}

std::string LongestDomains(size_t count) {
  std::string list;
  for (size_t i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + std::string(128, 'd');
  return list;
}

// What passes here must fit the node's record in the metadata store, for whoever keeps that stops
// the process over one that does not.
TEST(ServiceConfig, WhatDoesNotFitTheNodesRecordIsRefused) {
  for (const std::vector<std::string>& bad :
       std::vector<std::vector<std::string>>{{"--domains", LongestDomains(17)},
                                             {"--domains", std::string(129, 'd')},
                                             {"--domains", "rack-\xff"},
                                             {"--advertise-host", std::string(251, 'h')},
                                             {"--advertise-host", "10.0.0.1:7420"},
                                             {"--advertise-host", "[::1]"},
                                             {"--advertise-host", "host\xff"},
                                             {"--control-address", std::string(300, 'h') + ":7420"},
                                             {"--node-id", std::string(65, 'n')},
                                             {"--node-id", "n\xff"},
                                             {"--node-id", ""}}) {
    std::vector<std::string> arguments = {"--serve-metadata"};
    arguments.insert(arguments.end(), bad.begin(), bad.end());
    const Result<ServiceConfig> config = Parse(arguments);
    ASSERT_EQ(config.status().code(), StatusCode::kInvalidArgument) << bad[0] << " " << bad[1];
    EXPECT_THAT(config.status().message(), HasSubstr(bad[0]));
  }
}

TEST(ServiceConfig, TheLongestOfEverythingFitsTheNodesRecord) {
  const std::string host(replication::kNodeTextBytesMax - std::string(":65535").size(), 'h');
  const Result<ServiceConfig> config =
      Parse({"--serve-metadata", "--node-id", std::string(64, 'n'), "--domains",
             LongestDomains(replication::kNodeDomainsMax), "--advertise-host", host});
  ASSERT_TRUE(config.ok()) << config.status();
  replication::NodeRecord record;
  record.instance.node = NodeId(config->node_id);
  record.domains = config->domains;
  record.control_address = HostPort{config->advertise_host, UINT16_MAX}.ToString();
  record.data_address = record.control_address;
  EXPECT_TRUE(replication::CheckNodeRecord(record).ok()) << replication::CheckNodeRecord(record);
  for (const std::string host_alone : {"::1", "10.0.0.1", "node-3.cluster"}) {
    EXPECT_TRUE(Parse({"--serve-metadata", "--advertise-host", host_alone}).ok()) << host_alone;
  }
}

TEST(ServiceConfig, HelpAndVersionAreTexts) {
  const Result<ConfigOrText> help = ParseServiceConfig({"--help"});
  ASSERT_TRUE(help.ok());
  EXPECT_THAT(std::get<std::string>(*help), HasSubstr("--memory-budget"));
  const Result<ConfigOrText> version = ParseServiceConfig({"--version"});
  ASSERT_TRUE(version.ok());
  EXPECT_THAT(std::get<std::string>(*version), HasSubstr("backstayd "));
}

}  // namespace
}  // namespace backstay::tools
