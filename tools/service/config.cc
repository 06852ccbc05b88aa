#include "tools/service/config.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>

#include "base/slot_control.h"
#include "base/socket.h"
#include "base/text.h"
#include "base/version.h"
#include "replication/node_record.h"
#include "tools/nearest.h"

namespace backstay::tools {
namespace {

// Sizes in a config: "4GiB", "512 MiB", "4096"; binary units.
const CLI::AsSizeValue kByteSize(false);

constexpr Duration kLeaseTtlMin = std::chrono::milliseconds(300);
// A leader looks at open saves about once a second; one day is beyond any save.
constexpr Duration kSaveDeadlineMin = std::chrono::seconds(1);
constexpr Duration kSaveDeadlineMax = std::chrono::hours(24);

// What a service says about itself has to fit its record in the metadata store, whose limits are
// invariants there: CheckNodeRecord().
constexpr size_t kNodeIdBytesMax = 64;
constexpr size_t kDomainBytesMax = 128;
static_assert(kNodeIdBytesMax <= kNameBytesMax);
static_assert(kDomainBytesMax <= replication::kNodeTextBytesMax);
constexpr size_t kAddressBytesMax = replication::kNodeTextBytesMax;

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "node";
  return name.data();
}

void AddMilliseconds(CLI::App& app, const std::string& flag, Duration& value,
                     const std::string& help) {
  app.add_option_function<uint64_t>(
         flag,
         [&value](const uint64_t& ms) {
           constexpr uint64_t kMsMax = Duration::max() / std::chrono::milliseconds(1);
           value = std::chrono::milliseconds(std::min(ms, kMsMax));
         },
         help)
      ->default_str(std::to_string(ToMillis(value)));
}

void AddOptions(CLI::App& app, ServiceConfig& c) {
  app.set_config("--config", "",
                 "a file with one `key = value` per line; keys are these flags without dashes");
  app.allow_config_extras(CLI::config_extras_mode::error);
  app.add_option("--node-id", c.node_id,
                 "this node's name, unique in the cluster (default: the host's name)");
  app.add_option("--domains", c.domains, "failure domains, outermost first: rack-7,host-12")
      ->delimiter(',');
  app.add_flag("--hosts-simulated", c.hosts_simulated,
               "services of one machine stand for several hosts");
  app.add_option("--data-dir", c.data_dir, "where the embedded metadata store lives")
      ->capture_default_str();
  app.add_option("--socket", c.socket_path, "unix socket for trainers")->capture_default_str();
  app.add_option("--control-address", c.control_address, "host:port for peers and the command")
      ->capture_default_str();
  app.add_option("--data-address", c.data_address, "host:port for bulk transfers")
      ->capture_default_str();
  app.add_option("--advertise-host", c.advertise_host,
                 "how peers reach this node, if not by those addresses");
  app.add_option("--metrics-address", c.metrics_address, "host:port for Prometheus, empty for none")
      ->capture_default_str();
  app.add_option("--memory-budget", c.memory_budget_bytes,
                 "memory for shards, as 64GiB (default: half of all)")
      ->transform(kByteSize);
  app.add_option("--repair-reserve", c.repair_reserve_bytes,
                 "part of the budget that only repair may use")
      ->transform(kByteSize);
  app.add_option("--scrub-rate", c.scrub_bytes_per_second,
                 "memory to read again and verify each second, 0 for none (default: 128MiB)")
      ->transform(kByteSize);
  app.add_option("--chunk", c.chunk_bytes, "unit of checksum and transfer")
      ->transform(kByteSize)
      ->default_str("1MiB");
  app.add_flag("--serve-metadata", c.serve_metadata, "host the embedded metadata store");
  app.add_option("--metadata-address", c.metadata_address,
                 "control address of the service that hosts it");
  AddMilliseconds(app, "--lease-ttl-ms", c.lease_ttl,
                  "a silent node is taken for lost after this long");
  AddMilliseconds(app, "--save-deadline-ms", c.save_deadline,
                  "a save that is not committed by then is given up");
  app.add_option("--lanes", c.lanes, "data connections to each peer")->capture_default_str();
  app.add_flag("--insecure", c.insecure, "allow addresses that others can reach without TLS");
  app.add_option("--tls-ca", c.tls_ca, "PEM file: who may be a peer");
  app.add_option("--tls-certificate", c.tls_certificate, "PEM file: this node's certificate");
  app.add_option("--tls-key", c.tls_key, "PEM file: its key");
  app.add_option("--log-level", c.log_level)
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", c.log_format)
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
}

std::vector<std::string> KnownNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

// CLI11 says which words it could not place, but not which ones were meant.
Status UnknownName(const CLI::App& app, const std::string& what, const std::string& name) {
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  const std::string nearest = NearestName(bare, KnownNames(app));
  return InvalidArgument("unknown " + what + " '" + name + "'" +
                         (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") +
                         " --help lists them all");
}

// `host` with the longest port that may be put behind it.
Status CheckAddressBytes(const std::string& flag, const std::string& host) {
  const std::string address = HostPort{host, UINT16_MAX}.ToString();
  if (address.size() <= kAddressBytesMax) return Status::Ok();
  return InvalidArgument("--" + flag + ": the address has " + std::to_string(address.size()) +
                         " bytes; the limit is " + std::to_string(kAddressBytesMax));
}

// A host alone: the ports are those of the addresses that are listened on.
Status CheckAdvertisedHost(const std::string& host) {
  if (host.empty()) return Status::Ok();
  BACKSTAY_RETURN_IF_ERROR(CheckAddressBytes("advertise-host", host));
  const HostPort address{host, UINT16_MAX};
  const bool is_one_host = host.find(':') == std::string::npos
                               ? HostPort::Parse(address.ToString()).ok()
                               : ParseLiteral(address).ok();
  if (is_one_host && IsPrintableAscii(host)) return Status::Ok();
  return InvalidArgument("--advertise-host: a name or an IP literal, without a port");
}

Status CheckNames(const ServiceConfig& c) {
  if (c.node_id.empty() || c.node_id.size() > kNodeIdBytesMax || !IsPrintableAscii(c.node_id)) {
    return InvalidArgument("--node-id: 1 to " + std::to_string(kNodeIdBytesMax) +
                           " bytes of printable ASCII");
  }
  if (c.domains.size() > replication::kNodeDomainsMax) {
    return InvalidArgument("--domains: at most " + std::to_string(replication::kNodeDomainsMax) +
                           " labels, and " + std::to_string(c.domains.size()) + " were given");
  }
  for (const std::string& domain : c.domains) {
    if (domain.empty() || domain.size() > kDomainBytesMax || !IsPrintableAscii(domain)) {
      return InvalidArgument("--domains: labels of 1 to " + std::to_string(kDomainBytesMax) +
                             " bytes of printable ASCII");
    }
  }
  return CheckAdvertisedHost(c.advertise_host);
}

Status CheckAddress(const ServiceConfig& config, const std::string& flag,
                    const std::string& address) {
  const Result<HostPort> endpoint = HostPort::Parse(address);
  if (!endpoint.ok()) return InvalidArgument("--" + flag + ": " + endpoint.status().message());
  BACKSTAY_RETURN_IF_ERROR(CheckAddressBytes(flag, endpoint->host));
  const Result<std::vector<SocketAddress>> resolved = Resolve(*endpoint);
  if (!resolved.ok()) return InvalidArgument("--" + flag + ": " + resolved.status().message());
  const bool wildcard = endpoint->host == "0.0.0.0" || endpoint->host == "::";
  if (wildcard && config.advertise_host.empty() && flag != "metrics-address") {
    return InvalidArgument("--" + flag + " " + address +
                           " says nothing about how peers reach this node: set --advertise-host");
  }
  const bool loopback = std::all_of(resolved->begin(), resolved->end(),
                                    [](const SocketAddress& a) { return a.IsLoopback(); });
  if (loopback || config.insecure) return Status::Ok();
  if (flag == "metrics-address") {
    return PermissionDenied("--" + flag + " " + address +
                            " can be reached by other machines, and metrics are never encrypted: "
                            "keep it on loopback, or spell out --insecure");
  }
  if (!config.tls_ca.empty()) return Status::Ok();
  return PermissionDenied(
      "--" + flag + " " + address +
      " can be reached by other machines: set --tls-ca, --tls-certificate and --tls-key, or "
      "spell out --insecure in a network that you trust");
}

}  // namespace

Status ValidateServiceConfig(const ServiceConfig& c) {
  BACKSTAY_RETURN_IF_ERROR(CheckNames(c));
  BACKSTAY_RETURN_IF_ERROR(CheckAddress(c, "control-address", c.control_address));
  BACKSTAY_RETURN_IF_ERROR(CheckAddress(c, "data-address", c.data_address));
  if (!c.metrics_address.empty()) {
    BACKSTAY_RETURN_IF_ERROR(CheckAddress(c, "metrics-address", c.metrics_address));
  }
  const int tls_parts = !c.tls_ca.empty() + !c.tls_certificate.empty() + !c.tls_key.empty();
  if (tls_parts != 0 && tls_parts != 3) {
    return InvalidArgument("--tls-ca, --tls-certificate and --tls-key go together");
  }
  if (!c.serve_metadata && c.metadata_address.empty()) {
    return InvalidArgument(
        "say where the metadata store is: --serve-metadata on one service, and its control "
        "address as --metadata-address on the others");
  }
  if (c.serve_metadata && !c.metadata_address.empty()) {
    return InvalidArgument("--serve-metadata and --metadata-address exclude each other");
  }
  if (!IsChunkSize(c.chunk_bytes)) {
    return InvalidArgument("--chunk: a power of two from 4KiB to 64MiB");
  }
  if (c.lease_ttl < kLeaseTtlMin || c.lease_ttl > replication::kLeaseTtlMax) {
    return InvalidArgument("--lease-ttl-ms: 300 to 3600000");
  }
  if (c.save_deadline < kSaveDeadlineMin || c.save_deadline > kSaveDeadlineMax) {
    return InvalidArgument("--save-deadline-ms: 1000 to 86400000");
  }
  if (c.lanes < 1 || c.lanes > 16) return InvalidArgument("--lanes: 1 to 16");
  return Status::Ok();
}

Result<ConfigOrText> ParseServiceConfig(const std::vector<std::string>& arguments) {
  ServiceConfig config;
  config.node_id = HostName();
  CLI::App app(
      "backstayd: keeps the training state of this node's ranks, and replicas for its peers",
      "backstayd");
  app.set_version_flag("--version", std::string("backstayd ") + kVersion);
  AddOptions(app, config);
  std::vector<std::string> reversed(arguments.rbegin(),
                                    arguments.rend());  // CLI11 takes them from the back.
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    return ConfigOrText(app.help());
  } catch (const CLI::CallForVersion& version) {
    return ConfigOrText(std::string(version.what()) + "\n");
  } catch (const CLI::ConfigError& error) {
    const std::string text = error.what();
    // "INI was not able to parse KEY", "KEY: This option is not allowed in a configuration file"
    const size_t colon = text.find(": ");
    if (colon != std::string::npos) {
      return InvalidArgument("the key '" + text.substr(0, colon) +
                             "' is a flag only, and cannot be in the config file");
    }
    return UnknownName(app, "key in the config file", text.substr(text.rfind(' ') + 1));
  } catch (const CLI::ExtrasError& error) {
    const std::vector<std::string> extras = app.remaining();
    if (!extras.empty()) return UnknownName(app, "flag", extras.front());
    return InvalidArgument(error.what());
  } catch (const CLI::Error& error) {
    return InvalidArgument(error.what());
  }
  BACKSTAY_RETURN_IF_ERROR(ValidateServiceConfig(config));
  return ConfigOrText(config);
}

}  // namespace backstay::tools
